// def square(x : In[float]) -> float:
float square(float x) {
  return x * x;
}

// def march(rays : In[Array[Ray]], n : In[int], total : Out[float], nearest : Out[Ray]) -> int:
__attribute__((noinline)) static int march_body(Ray *rays, int n, float *total, Ray *nearest) {
  int i = 0;
  Ray best = {0};
  for (int count = 0; i < n && !(rays[i].t < 0.0f || i > 9); ++count) {
    loma_within(count, 10, "march", 12);
    if (rays[i].t < best.t) {
      best = rays[i];
    } else if (loma_mod(i, 2) == 0) {
      best.origin[loma_mod(i, 3)] = best.origin[loma_mod(i, 3)] - square(rays[i].t) / 2;
    } else {
      best.t += n;
    }
    i += 1;
  }
  for (int k = 0; k < 3; ++k) {
    for (int j = k + 1; j-- > 0;) {
      *total += best.origin[k] * (1.0f - best.origin[j]) - (*total - (*total - k));
    }
  }
  *nearest = best;
  return loma_to_int(loma_floor_div_real(*total * n, 2));
}

int march(Ray *rays, int n, float *total, Ray *nearest) {
  if (setjmp(loma_landing)) return 0;
  return march_body(rays, n, total, nearest);
}

// @simd
// def each(x : In[Array[float]], hits : Out[Array[int, 4]], y : Out[float]):
__attribute__((noinline)) static void each_body(float *x, int *hits, float *y, int item) {
  int i = loma_to_int(4.0f * x[item]);
  LOMA_OPENMP(atomic)
  hits[loma_at(i, 4, "each", 29)] += 1;
  LOMA_OPENMP(atomic)
  *y += loma_power(x[item], 3);
}

// The items from start to the one before end; the first failure of the lowest item is kept.
static void each_chunk(float *x, int *hits, float *y, int start, int end, int *first, loma_error *failure) {
  volatile int item = start;
  if (setjmp(loma_landing)) {
    LOMA_OPENMP(critical (loma_failures))
    {
      if (item < *first) {
        *first = item;
        *failure = loma_failure;
      }
    }
    loma_failure = (loma_error){0};
    return;
  }
  for (; item < end; ++item) each_body(x, hits, y, item);
}

void each(float *x, int *hits, float *y, int items) {
  int first = INT_MAX;
  loma_error failure = {0};
  int chunks = items / 64 + (items % 64 > 0);
  LOMA_OPENMP(parallel for schedule(dynamic) if (chunks > 1))
  for (int chunk = 0; chunk < chunks; ++chunk) {
    int start = chunk * 64;
    int end = items - start < 64 ? items : start + 64;
    each_chunk(x, hits, y, start, end, &first, &failure);
  }
  if (first < INT_MAX) loma_failure = failure;
}

// def curve(x : In[float], n : In[int]) -> float:
float curve(float x, int n) {
  float y = x;
  for (int i = 0; i < n; ++i) {
    y = sinf(y) * x;
  }
  return y;
}

// def d_curve(x : In[float], _d_x : Out[float], n : In[int], _d_n : Out[int], _d_result : In[float]):
// Tape: '_tape_y' grows without a known bound (Stack[float])
__attribute__((noinline)) static void d_curve_body(float x, float *_d_x, int n, int *_d_n, float _d_result) {
  (void)_d_n;
  float _d_y = 0.0f;
  float _g = 0.0f;
  float *_tape_y = NULL;
  int _tape_y_size = 0, _tape_y_room = 0;
  float y = x;
  for (int i = 0; i < n; ++i) {
    _tape_y = loma_grown(_tape_y, _tape_y_size, &_tape_y_room, INT_MAX, sizeof *_tape_y, "d_curve", 32);
    _tape_y[_tape_y_size++] = y;
    y = sinf(y) * x;
  }
  _d_y += _d_result;
  for (int i = n; i-- > 0;) {
    y = _tape_y[loma_pop(&_tape_y_size, "d_curve", 32)];
    _g = _d_y;
    _d_y = _g * x * cosf(y);
    *_d_x += _g * sinf(y);
  }
  *_d_x += _d_y;
  loma_release(_tape_y);
}

void d_curve(float x, float *_d_x, int n, int *_d_n, float _d_result) {
  if (setjmp(loma_landing)) return;
  d_curve_body(x, _d_x, n, _d_n, _d_result);
}
