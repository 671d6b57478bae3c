// Where the cache is: what loma/config.py and loma/cache_roots.py say, for what this library keeps
// itself and for programs without Python.
#ifndef LOMA_CACHE_ROOTS_H
#define LOMA_CACHE_ROOTS_H

#include <filesystem>
#include <string>
#include <vector>

namespace loma {

// Folders of one name in the cache: those to read from, in that order, and the one to write to, if
// there is any. Nobody but the user and root can change them.
struct CacheFolders {
  std::vector<std::filesystem::path> read;
  std::filesystem::path write;
};

// As the environment says now.
CacheFolders cache_folders(const std::string& name);

// Makes the folder to write to, and what is above it; nothing where that fails.
void make_cache_folder(const std::filesystem::path& folder);

}  // namespace loma

#endif  // LOMA_CACHE_ROOTS_H
