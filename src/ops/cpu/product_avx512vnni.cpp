// The level "avx512vnni" of product.h.
#if defined(__x86_64__)
#define QUERN_LEVEL avx512vnni
#define QUERN_TARGET "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
#define QUERN_WIDE 1
#define QUERN_VNNI 1
#include "ops/cpu/level-inl.h"
#endif
