// def march(rays : In[Array[Ray]], n : In[int], total : Out[float], nearest : Out[Ray]) -> int:
__attribute__((noinline)) static int march_body(loma_array_Ray rays, int n, double *total, Ray *nearest) {
  int i = 0;
  Ray best = {0};
  for (int count = 0; i < n && !(rays.data[loma_at(i, rays.size, "march", 12)].t < 0.0 || i > 9); ++count) {
    loma_within(count, 10, "march", 12);
    if (rays.data[loma_at(i, rays.size, "march", 13)].t < best.t) {
      best = rays.data[loma_at(i, rays.size, "march", 14)];
    } else if (loma_mod(i, 2) == 0) {
      best.origin[loma_mod(i, 3)] = best.origin[loma_mod(i, 3)] - square(rays.data[loma_at(i, rays.size, "march", 16)].t) / 2;
    } else {
      best.t += n;
    }
    i += 1;
  }
  for (int k = 0; k < 3; ++k) {
    for (int j = k + 1; j-- > 0;) {
      *total += best.origin[k] * (1.0 - best.origin[j]) - (*total - (*total - k));
    }
  }
  *nearest = best;
  return loma_to_int(loma_floor_div_real(*total * n, 2));
}

int march(loma_array_Ray rays, int n, double *total, Ray *nearest) {
  if (setjmp(loma_landing)) return 0;
  return march_body(rays, n, total, nearest);
}
