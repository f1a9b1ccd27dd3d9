// The level "avx2" of product.h.
#if defined(__x86_64__)
#define QUERN_LEVEL avx2
#define QUERN_TARGET "avx2,fma,f16c"
#define QUERN_WIDE 0
#define QUERN_VNNI 0
#include "ops/cpu/level-inl.h"
#endif
