// The level "avxvnni" of product.h.
#if defined(__x86_64__)
#define QUERN_LEVEL avxvnni
#define QUERN_TARGET "avx2,fma,f16c,avxvnni"
#define QUERN_WIDE 0
#define QUERN_VNNI 1
#define QUERN_INT8_ONLY  // its f32 products are avx2's
#include "ops/cpu/level-inl.h"
#endif
