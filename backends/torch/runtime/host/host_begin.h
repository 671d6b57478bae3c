// Around the host's part of a generated function, up to host_end.h: it prepares loops, which are
// functions of their own, and to optimise it as these would take as long as all of them. Serial loops
// stand in it, and are marked.
#pragma GCC push_options
#ifdef LOMA_QUICK
#pragma GCC optimize("O0")
#else
#pragma GCC optimize("O1")
#endif

#ifndef LOMA_SERIAL
#if defined(__clang__) || defined(LOMA_QUICK)
#define LOMA_SERIAL
#else
#define LOMA_SERIAL __attribute__((optimize("O3")))
#endif
#endif
