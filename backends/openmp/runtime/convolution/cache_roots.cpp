#include "cache_roots.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace loma {
namespace {

namespace fs = std::filesystem;

enum class Use { refused, nothing, read, write };

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Empty for a user without one.
std::string home() {
  if (std::getenv("HOME") != nullptr) return variable("HOME");
  passwd entry{}, *found = nullptr;
  std::array<char, 4096> buffer{};
  getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? "" : entry.pw_dir;
}

fs::path expanded(const std::string& path) {
  return path.rfind("~/", 0) == 0 ? fs::path(home() + path.substr(1)) : fs::path(path);
}

fs::path private_root() {
  const std::string given = variable("TMPDIR");
  return fs::path(given.empty() ? "/tmp" : given) / ("loma-" + std::to_string(geteuid()));
}

std::vector<fs::path> places() {
  std::vector<fs::path> found;
  if (const auto given = variable("LOMA_CACHE_DIR"); !given.empty()) {
    found.push_back(expanded(given));
  }
  if (const auto base = variable("XDG_CACHE_HOME"); !base.empty()) {
    found.push_back(expanded(base) / "loma");
  } else if (!home().empty()) {
    found.push_back(expanded("~/.cache") / "loma");
  }
  found.push_back(private_root());
  return found;
}

bool may(const fs::path& place, int what) {
  return faccessat(AT_FDCWD, place.c_str(), what, AT_EACCESS) == 0;
}

bool can_be_made(fs::path place) {
  struct stat found {};
  do {
    if (place == place.parent_path()) return false;
    place = place.parent_path();
    if (place.empty()) place = ".";
  } while (lstat(place.c_str(), &found) != 0);
  return may(place, W_OK | X_OK);
}

Use use_of(const fs::path& place) {
  struct stat link {}, found {};
  if (lstat(place.c_str(), &link) != 0) {
    if (errno == ENOENT) return can_be_made(place) ? Use::write : Use::nothing;
    return errno == EACCES ? Use::nothing : Use::refused;
  }
  if (stat(place.c_str(), &found) != 0) return errno == EACCES ? Use::nothing : Use::refused;
  const uid_t user = geteuid();
  const auto strange = [&](uid_t owner) { return owner != user && owner != 0; };
  if (!S_ISDIR(found.st_mode) || strange(link.st_uid) || strange(found.st_uid) ||
      (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Use::refused;
  }
  if (found.st_uid == user && may(place, R_OK | W_OK | X_OK)) return Use::write;
  return may(place, R_OK | X_OK) ? Use::read : Use::nothing;
}

}  // namespace

CacheFolders cache_folders(const std::string& name) {
  CacheFolders found;
  const auto all = places();
  for (const fs::path& root : all) {
    const Use use = std::min(use_of(root), use_of(root / name));
    if (use == Use::refused && root == all.front()) break;
    if (use >= Use::read) found.read.push_back(root / name);
    if (use == Use::write) {
      found.write = root / name;
      break;
    }
  }
  return found;
}

void make_cache_folder(const fs::path& folder) {
  const fs::path root = folder.parent_path();
  std::error_code error;
  fs::create_directories(root.parent_path(), error);
  // Nobody else's business where it lies among everybody's files.
  mkdir(root.c_str(), root == private_root() ? 0700 : 0755);
  mkdir(folder.c_str(), 0755);
}

}  // namespace loma
