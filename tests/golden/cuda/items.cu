#define LOMA_ALLOCATES
#include "items.h"

typedef struct _dfloat__struct {
  float val;
  float dval;
} _dfloat__struct;

typedef struct {
  float *data;
  int size;
} loma_array_float;

/* The slot of a stack that a value is popped from. */
static inline int loma_pop(int *size, const char *function, int line) {
  if (*size <= 0) loma_fail(5, function, line, 0, 0);
  return --*size;
}

/* A subscript of an array of that size. */
static inline int loma_at(int i, int size, const char *function, int line) {
  if (i < 0 || i >= size) loma_fail(2, function, line, i, size);
  return i;
}

/* base ** exponent, where the exponent is not negative. */
static inline int loma_power_int(int base, int exponent) {
  int result = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2) result *= base;
  }
  return result;
}

/* x * y, and 0 where y is 0, even if x is infinite or NaN. */
static inline float loma_mul_no_nan(float x, float y) { return y == 0 ? 0 : x * y; }

// @simd
// def d_blur(
//     x : In[Array[float]], _d_x : Out[Array[float]], n : In[int], _d_n : Out[int],
//     sharpness : In[float], _d_sharpness : Out[float], _d_y : In[Array[float]],
// ):
// Tape: '_tape_weight' grows without a known bound (Stack[float])
static inline void d_blur__scalar(loma_array_float x, loma_array_float _d_x, int n, int *_d_n, float sharpness, float *_d_sharpness, loma_array_float _d_y, int item) {
  (void)_d_n;
  float _d_sharpness_local = 0.0f;
  float _d_weight = 0.0f;
  float *_tape_weight = NULL;
  int _tape_weight_size = 0, _tape_weight_room = 0;
  float sharpness_local = sharpness;
  int i = item;
  float sum = 0.0f;
  float weight = 0.0f;
  float total = 0.0f;
  for (int j = 0; j < n; ++j) {
    _tape_weight = loma_grown(_tape_weight, _tape_weight_size, &_tape_weight_room, INT_MAX, sizeof *_tape_weight, "d_blur", 3);
    _tape_weight[_tape_weight_size++] = weight;
    weight = expf(-sharpness_local * loma_power_int(loma_difference(i, j), 2));
    sum += weight * x.data[loma_at(j, x.size, "d_blur", 10)];
    total += weight;
  }
  float _d_sum = loma_mul_no_nan(1.0f / total, _d_y.data[loma_at(i, _d_y.size, "d_blur", 12)]);
  float _d_total = loma_mul_no_nan(-(sum / total / total), _d_y.data[loma_at(i, _d_y.size, "d_blur", 12)]);
  for (int j = n; j-- > 0;) {
    _d_weight += _d_total;
    _d_weight += _d_sum * x.data[loma_at(j, x.size, "d_blur", 10)];
    loma_atomic_add(&_d_x.data[loma_at(j, _d_x.size, "d_blur", 10)], _d_sum * weight);
    weight = _tape_weight[loma_pop(&_tape_weight_size, "d_blur", 3)];
    _d_sharpness_local += -(loma_mul_no_nan(expf(-sharpness_local * loma_power_int(loma_difference(i, j), 2)), _d_weight) * loma_power_int(loma_difference(i, j), 2));
    _d_weight = 0.0f;
  }
  loma_atomic_add(_d_sharpness, _d_sharpness_local);
  loma_release(_tape_weight);
}

LOMA_KERNEL d_blur__items(
    const loma_array_float x,
    loma_array_float _d_x,
    const loma::Number<int> n,
    int *_d_n,
    const loma::Number<float> sharpness,
    float *_d_sharpness,
    const loma_array_float _d_y,
    const loma::Grid loma_grid) {
  loma::items(loma_grid, [&](const int item) { d_blur__scalar(x, _d_x, n[0], _d_n, sharpness[0], _d_sharpness, _d_y, item); });
}
