// The end of what host_begin.h begins.
#pragma GCC pop_options
