// One level of product.h, whole: included once by each level's own file (no #pragma once), which names the level's
// namespace in QUERN_LEVEL and its instructions in QUERN_TARGET, and sets QUERN_WIDE (512-bit vectors) and
// QUERN_VNNI (dot products of four bytes in one instruction); QUERN_INT8_ONLY leaves the f32 products out. Only what
// lies between push and pop may use these instructions, so every header that others share comes before.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ops/cpu/int8_formats.h"
#include "ops/cpu/int8_record.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/product.h"

#define QUERN_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define QUERN_PUSH_TARGET(instructions) \
  QUERN_PRAGMA(clang attribute push(__attribute__((target(instructions))), apply_to = function))
#else
#define QUERN_PUSH_TARGET(instructions) QUERN_PRAGMA(GCC target(instructions))
#pragma GCC push_options
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of _mm512_undefined_ps in GCC 12's own headers
#endif
QUERN_PUSH_TARGET(QUERN_TARGET)
#include "ops/cpu/vector-inl.h"
// After vector-inl.h:
#ifndef QUERN_INT8_ONLY
#include "ops/cpu/f32_product-inl.h"
#endif
#include "ops/cpu/int8_product-inl.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
