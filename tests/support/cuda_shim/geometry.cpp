// How many threads launches have, for tests in Python (geometry.py): the runtime's rules, which need
// neither torch nor a GPU.
#include "gpu_geometry.cpp"

#include <iterator>

namespace {

using namespace loma::gpu;

// As geometry.py names them.
void tell(const Geometry& g, int64_t* found) {
  const int64_t told[] = {g.threads, g.team, g.across, g.shared, g.blocks, g.slices, g.beside, g.rows,
                          g.columns, g.shared_bytes, g.workspace_bytes, g.registers};
  std::copy(std::begin(told), std::end(told), found);
}

Shape shape_of(const int64_t* wanted) {
  Shape shape;
  int* const members[] = {&shape.team, &shape.threads, &shape.slices, &shape.beside, &shape.blocks};
  for (int* member : members) *member = static_cast<int>(*wanted++);
  return shape;
}

}  // namespace

extern "C" {

void statement(const int64_t* n, const int64_t* shape, int64_t* found) {
  tell(statement_geometry(n[0], n[1], n[2] != 0, n[3] != 0, 4, n[4], n[5], n[6], n[7] != 0,
                          shape_of(shape)),
       found);
}

void running(const int64_t* n, const int64_t* shape, int64_t* found) {
  tell(running_geometry(n[0], n[1], n[2] != 0, n[3] != 0, shape_of(shape)), found);
}

void fused(const int64_t* n, const int64_t* shape, int64_t* found) {
  Geometry g = fused_geometry(n[0], n[1], n[2], n[3], n[4], shape_of(shape), 0, n[5]);
  g.registers = registers_for(g, sizeof(float), n[3]);
  tell(g, found);
}

}  // extern "C"
