// Launches: arguments, geometry, and memory that lasts as long as a launch.
#include "gpu_kernels.h"
#include "gpu_lists.h"
#include "gpu_reports.h"

#include "allocate.h"
#include "call_device.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace loma::gpu {

// A kernel's last parameter: loma::Grid of the device's headers.
struct Grid {
  int64_t count;     // of iterations
  int64_t slices;    // of a reduction, in its first stage: gridDim.y
  void* parts;       // what the slices gave, [sums][slices][count]
  char* workspace;   // private memory that is not shared memory
  int64_t bytes;     // of it, for each iteration
  int64_t far;       // bytes of an iteration that are in the workspace in any case
  Report* report;
  int64_t beside;    // iterations that a thread may take side by side
  int64_t first, blocks;  // of a launch for positions of lists, the blocks of this one
};

namespace {

thread_local Trace* trace = nullptr;
thread_local Trial* trial = nullptr;

constexpr int64_t kPart = 16;  // bytes of a partial result: a value with its position

// 1 for bfloat16, 2 for float16, 0 where a call's tensors are of another dtype.
int narrow_of_call() {
  const at::ScalarType dtype = call_dtype();
  return dtype == at::kBFloat16 ? 1 : dtype == at::kHalf ? 2 : 0;
}

at::Tensor memory(int64_t bytes) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(call_device());
  return empty({bytes}, options);
}

}  // namespace

Trace::Trace() : outer_(trace) { trace = this; }
Trace::~Trace() { trace = outer_; }

Trial::Trial(std::vector<int> numbers) : numbers(std::move(numbers)), outer_(trial) {
  trial = this;
}
Trial::~Trial() { trial = outer_; }

int tried(int place) {
  const auto at = static_cast<size_t>(place);
  return trial != nullptr && at < trial->numbers.size() ? trial->numbers[at] : 0;
}

bool is_trial() { return trial != nullptr; }

class Launcher {
 public:
  explicit Launcher(Launch& launch) : launch_(launch) {
    TORCH_CHECK(call_on_gpu(), launch.kernel_.state().name, ": launched outside of a call");
    const at::Device device = call_device();
    device_ = device.is_cuda() ? device.index() : 0;
    grid_.report = report_of(device);
  }

  int device() const { return device_; }

  void run(const Geometry& geometry, int stage) {
    Kernel::State& kernel = launch_.kernel_.state();
    Form form{device_,        launch_.real_bytes_, geometry.threads, geometry.team,
              stage,          geometry.across,     geometry.shared,  geometry.narrow,
              geometry.depth, geometry.width,      geometry.groups};
    if (launch_.narrow_) form.narrow = narrow_of_call();
    form.registers = launch_.shape_.registers;
    form.unroll = launch_.shape_.unroll;
    form.lanes = geometry.lanes;
    form.rows = geometry.rows;
    form.columns = geometry.columns;
    grid_.beside = geometry.beside;
    if (waits(stage)) {
      form.lists = true;
      return wait(form, geometry);
    }
    const Function function =
        kernel.find(form, launch_.known_, launch_.numbers_, launch_.aligned_, geometry.shared_bytes);
    launch_.starts_[launch_.arguments_] = &grid_;
    if (trace != nullptr) trace->launches.push_back(told(geometry, form));
    launch(function, kernel.name.c_str(), device_, geometry.blocks,
           stage % 2 == 1 ? geometry.slices : 1, geometry.threads, geometry.shared_bytes,
           launch_.starts_);
  }

  Grid grid_{};

 private:
  std::string told(const Geometry& geometry, const Form& form) const {
    std::string text = launch_.kernel_.state().name;
    for (const int64_t number : {
             static_cast<int64_t>(std::hash<std::string>()(launch_.kernel_.state().text)),
             geometry.blocks, geometry.slices, static_cast<int64_t>(geometry.beside),
             static_cast<int64_t>(geometry.rows), static_cast<int64_t>(geometry.columns),
             static_cast<int64_t>(form.stage), static_cast<int64_t>(form.threads),
             static_cast<int64_t>(form.team), static_cast<int64_t>(form.shared),
             static_cast<int64_t>(form.registers), static_cast<int64_t>(form.unroll)}) {
      text += ' ' + std::to_string(number);
    }
    return text;
  }
  bool waits(int stage) const;
  void wait(const Form& form, const Geometry& geometry);

  Launch& launch_;
  int device_;
};

// As device/lists.h has them.
constexpr int kMostWords = 512;
constexpr int kGridWords = sizeof(Grid) / sizeof(uint64_t);

// Launches that one may serve: of a kernel in one form.
struct Lists::Group {
  Kernel::State* kernel;
  Form form;
  int64_t shared_bytes;
  int size;                        // words of a position's arguments
  std::vector<uint64_t> firsts{};  // the first block of each position
  std::vector<uint64_t> words{};   // the arguments of each
  int64_t blocks = 0;              // of all
  bool aligned = true;             // the pointers of all

  bool has_room() const {
    return 2 + (firsts.size() + 1) * static_cast<size_t>(1 + size) <= kMostWords &&
           blocks < INT32_MAX / 2;
  }

  void launch() {
    uint64_t all[kMostWords] = {firsts.size(), static_cast<uint64_t>(size)};
    std::copy(words.begin(), words.end(), std::copy(firsts.begin(), firsts.end(), all + 2));
    Form own = form;
    own.aligned = aligned;
    const Function function = kernel->find(own, nullptr, 0, aligned, shared_bytes);
    void* argument = all;
    gpu::launch(function, kernel->name.c_str(), form.device, blocks, 1, form.threads, shared_bytes,
                &argument);
    firsts.clear();
    words.clear();
    blocks = 0;
    aligned = true;
  }
};

Lists*& Lists::current() {
  thread_local Lists* lists = nullptr;
  return lists;
}

Lists::Lists() : outer_(current()) { current() = this; }
Lists::~Lists() { current() = outer_; }

void Lists::launch() {
  for (Group& group : groups_) {
    if (!group.firsts.empty()) group.launch();
  }
}

Lists::Group& Lists::group_of(const Group& wanted) {
  for (Group& one : groups_) {
    if (one.kernel == wanted.kernel && one.form == wanted.form &&
        one.shared_bytes == wanted.shared_bytes) {
      return one;
    }
  }
  return groups_.emplace_back(wanted);
}

bool Launcher::waits(int stage) const {
  return Lists::current() != nullptr && launch_.kernel_.state().lists && stage == 0 &&
         grid_.workspace == nullptr && 2 + 1 + launch_.slots_ + kGridWords <= kMostWords;
}

void Launcher::wait(const Form& form, const Geometry& geometry) {
  const int own = launch_.slots_, size = own + kGridWords;
  Lists::Group& group = Lists::current()->group_of(
      {&launch_.kernel_.state(), form, geometry.shared_bytes, size});
  if (!group.has_room()) group.launch();
  grid_.first = group.blocks;
  grid_.blocks = geometry.blocks;
  group.firsts.push_back(static_cast<uint64_t>(group.blocks));
  group.words.insert(group.words.end(), launch_.bits_, launch_.bits_ + own);
  const size_t place = group.words.size();
  group.words.resize(place + kGridWords);
  std::memcpy(&group.words[place], &grid_, sizeof grid_);
  group.blocks += geometry.blocks;
  group.aligned &= launch_.aligned_;
}

Launch::Launch(Kernel& kernel, size_t real_bytes) : kernel_(kernel), real_bytes_(real_bytes) {}

// Of two slots where a number has as many. The last of starts_ is the grid's.
void Launch::add(uint64_t bits, uint64_t behind, int slots) {
  TORCH_CHECK(slots_ + slots < kMost, kernel_.state().name,
              ": more arguments than a kernel of a GPU takes");
  starts_[arguments_++] = &bits_[slots_];
  bits_[slots_] = bits;
  bits_[slots_ + 1] = behind;
  slots_ += slots;
}

void Launch::pointer(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  aligned_ &= bits % kWide == 0;
  add(bits);
}

void Launch::bytes(const void* value, size_t size) {
  constexpr size_t slot = sizeof(uint64_t);
  const auto slots = static_cast<int>((std::min(size, sizeof bits_) + slot - 1) / slot);
  TORCH_CHECK(slots_ + slots < kMost, kernel_.state().name,
              ": more arguments than a kernel of a GPU takes");
  starts_[arguments_++] = &bits_[slots_];
  std::memcpy(&bits_[slots_], value, size);
  slots_ += slots;
}

void Launch::element_of(const at::Tensor& tensor, size_t bytes) {
  TORCH_CHECK(tensor.element_size() == static_cast<int64_t>(bytes) && tensor.is_floating_point(),
              kernel_.state().name, ": a number of ", tensor.dtype(), " where one of ", bytes,
              " bytes is expected");
  // Number<real>: where it lies, or itself. A stand-in's kernels reach the host's.
  const bool reached = tensor.is_cuda() || !call_device().is_cuda();
  uint64_t value = 0;
  if (!reached) std::memcpy(&value, tensor.const_data_ptr(), bytes);
  add(reached ? reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) : 0, value, 2);
}

void Launch::number(int64_t given) {
  add(static_cast<uint64_t>(given));
  known_[numbers_++] = given;
}

void Launch::statement(int64_t count, int64_t inner, bool across, int sums, int64_t several,
                       int64_t around, int64_t second, bool pairs) {
  if (count <= 0) return;
  const Geometry geometry = statement_geometry(count, inner, across, sums > 0, kWide / real_bytes_,
                                               several, around, second, pairs, shape_);
  // Numbers of 64 bits take two.
  if (shape_.registers == 0 && real_bytes_ == sizeof(float)) shape_.registers = geometry.registers;
  Launcher launcher(*this);
  launcher.grid_.count = count;
  launcher.grid_.slices = geometry.slices;
  if (geometry.slices == 1) return launcher.run(geometry, 0);
  const at::Tensor parts = memory(sums * geometry.slices * count * kPart);
  launcher.grid_.parts = parts.mutable_data_ptr();
  launcher.run(geometry, 1);
  launcher.run(joining_geometry(count), 2);
}

void Launch::running(int64_t rows, int64_t length, bool splits, bool across) {
  if (rows <= 0 || length <= 0) return;
  const Geometry geometry = running_geometry(rows, length, splits, across, shape_);
  Launcher launcher(*this);
  launcher.grid_.count = rows;
  launcher.grid_.slices = geometry.slices;
  if (geometry.slices == 1) return launcher.run(geometry, 0);
  const at::Tensor parts = memory(geometry.slices * rows * kPart);
  launcher.grid_.parts = parts.mutable_data_ptr();
  launcher.run(geometry, 1);
  launcher.run(geometry, 3);
}

void Launch::fused(int64_t count, int64_t inner, int64_t bytes, int64_t far, int64_t carriers,
                   int64_t least) {
  if (count <= 0) return;
  const int64_t most = most_shared(Launcher(*this).device());
  const Geometry geometry = fused_geometry(count, inner, bytes, most, far, shape_, carriers, least);
  if (shape_.registers == 0) shape_.registers = registers_for(geometry, real_bytes_, most);
  iterations(geometry, count, bytes, far);
}

void Launch::lanes(int64_t count, int64_t values, int64_t columns, int64_t bytes, int64_t far) {
  if (count <= 0) return;
  const int64_t most = most_shared(Launcher(*this).device());
  iterations(lanes_geometry(count, values, columns, bytes, most, far), count, bytes, far);
}

void Launch::iterations(const Geometry& geometry, int64_t count, int64_t bytes, int64_t far) {
  Launcher launcher(*this);
  launcher.grid_.count = count;
  launcher.grid_.slices = 1;
  launcher.grid_.bytes = bytes;
  launcher.grid_.far = far;
  at::Tensor workspace;
  if (geometry.workspace_bytes > 0) {
    workspace = memory(geometry.workspace_bytes);
    launcher.grid_.workspace = static_cast<char*>(workspace.mutable_data_ptr());
  }
  launcher.run(geometry, 0);
}

void Launch::serial() {
  Launcher launcher(*this);
  launcher.grid_.count = 1;
  launcher.grid_.slices = 1;
  launcher.run(Geometry{}, 0);
}

int64_t carriers(int64_t rows, int64_t width, int64_t bytes) {
  return carriers(rows, width, bytes, call_device().is_cuda());
}

bool lanes_fit(size_t real_bytes, int64_t values, int64_t columns, std::initializer_list<int64_t> few,
               std::initializer_list<int64_t> apart) {
  const bool on_gpu = call_device().is_cuda();
  if (on_gpu && real_bytes != sizeof(float)) return false;  // numbers of 64 bits take two registers
  return lanes_fit(values, columns, few, apart, on_gpu);
}

bool sweeps(size_t real_bytes, int64_t rows, int64_t columns, int64_t depth, int64_t width) {
  if (narrow_of_call() == 0 || real_bytes != sizeof(float)) return false;
  const at::Device device = call_device();
  return sweeps_fit(rows, columns, depth, width) && has_matrix_units(device.is_cuda() ? device.index() : 0);
}

void widen(at::Tensor& to, const at::Tensor& from, size_t real_bytes) {
  to = from.to(real_bytes == sizeof(double) ? at::kDouble : at::kFloat);
}

void narrow(at::Tensor& to, const at::Tensor& from) { to = from.to(call_dtype()).contiguous(); }

struct Launch::Held {
  std::vector<at::Tensor> tensors;
};

Launch::~Launch() { delete held_; }

void Launch::operand_of(const at::Tensor& tensor) {
  narrow_ = true;
  at::Tensor narrow = tensor.to(call_dtype()).contiguous();
  // Copies to shared memory take 16 bytes at a time.
  if (reinterpret_cast<uintptr_t>(narrow.const_data_ptr()) % kWide != 0) narrow = narrow.clone();
  if (held_ == nullptr) held_ = new Held;
  pointer(narrow.const_data_ptr());
  held_->tensors.push_back(std::move(narrow));
}

void Launch::halves_of(const at::Tensor& tensor) {
  narrow_ = true;
  const bool is_narrow = tensor.scalar_type() == call_dtype();
  at::Tensor found = is_narrow ? tensor : tensor.to(at::kFloat);
  const auto address = reinterpret_cast<uintptr_t>(found.const_data_ptr());
  add(is_narrow ? address : 0, is_narrow ? 0 : address, 2);
  if (held_ == nullptr) held_ = new Held;
  held_->tensors.push_back(std::move(found));
}

void Launch::result_of(at::Tensor& tensor, const int64_t* sizes, size_t rank) {
  tensor = empty({sizes, rank}, at::TensorOptions().dtype(call_dtype()).device(call_device()));
  pointer(tensor.mutable_data_ptr());
}

static bool has_groups() {
  const at::Device device = call_device();
  return units_take_groups(device.is_cuda() ? device.index() : 0);
}

void Launch::sweep(int64_t outer, int64_t rows, int64_t depth, int64_t width) {
  if (outer <= 0 || rows <= 0) return;
  pass(sweep_geometry(outer, rows, depth, width, has_groups()), outer * rows);
}

void Launch::pairs(int64_t outer, int64_t rows, int64_t depth, int64_t width, int64_t kept) {
  if (outer <= 0 || rows <= 0) return;
  pass(pairs_geometry(outer, rows, depth, width, kept, has_groups()), outer * rows);
}

void Launch::pass(const Geometry& of_call, int64_t count) {
  Geometry geometry = of_call;
  narrow_ = true;
  shape_.registers = geometry.registers;
  Launcher launcher(*this);
  launcher.grid_.count = count;
  launcher.grid_.slices = 1;
  launcher.run(geometry, 0);
}

}  // namespace loma::gpu
