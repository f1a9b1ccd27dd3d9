// The level "avxvnni" of product.h. Only what lies between push and pop may use its instructions.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ops/cpu/int8_formats.h"
#include "ops/cpu/int8_record.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/product.h"

#define QUERN_LEVEL avxvnni
#define QUERN_WIDE 0
#define QUERN_VNNI 1

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of _mm512_undefined_ps in GCC 12's own headers
#endif
#include "ops/cpu/vector-inl.h"
// After vector-inl.h:
#include "ops/cpu/int8_product-inl.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
