// The fixture of the op tests: one body runs on every device this build and machine have. Tensors are made on the
// host, uploaded, and read back.
//
//   class NormTest : public OpTest {};
//   ON_EVERY_DEVICE(NormTest);
//   TEST_P(NormTest, matches_double_precision) { ... }
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/batch_view.h"
#include "ops/quant_formats.h"
#include "ops/scalar.h"
#include "ops/weight.h"
#include "tensor/buffer.h"
#include "tensor/stream.h"

namespace quern::test {

inline std::vector<DeviceType> devices() {
  std::vector<DeviceType> all{DeviceType::Cpu};
  if (kHasCuda && std::filesystem::exists("/dev/nvidiactl")) all.push_back(DeviceType::Cuda);
  return all;
}

#define ON_EVERY_DEVICE(Fixture)                                       \
  INSTANTIATE_TEST_SUITE_P(                                            \
      Devices, Fixture, ::testing::ValuesIn(::quern::test::devices()), \
      [](const auto& info) { return info.param == ::quern::DeviceType::Cpu ? "cpu" : "cuda"; })

// A device with its stream and the memory a test hands to ops.
class Machine {
 public:
  explicit Machine(DeviceType type, int n_threads = 2) : pool_(n_threads), s(Device{type, 0}, pool_) {
    if (type == DeviceType::Cuda) s.reserve_scratch(int64_t{1} << 30);
  }

  Tensor zeros(DType dtype, std::initializer_list<int64_t> shape) {
    const Tensor host(nullptr, dtype, shape);
    buffers_.push_back(std::make_unique<Buffer>(s.device(), std::max<int64_t>(host.bytes(), 1)));
    return Tensor(buffers_.back()->data(), dtype, shape);
  }
  template <typename T>
  Tensor tensor(DType dtype, std::initializer_list<int64_t> shape, const std::vector<T>& values) {
    const Tensor t = zeros(dtype, shape);
    QUERN_CHECK(t.bytes() == static_cast<int64_t>(values.size() * sizeof(T)),
                "test tensor: size and shape differ");
    s.upload(t.data, values.data(), t.bytes());
    s.synchronize();
    return t;
  }
  Tensor f32(std::initializer_list<int64_t> shape, const std::vector<float>& values) {
    return tensor(DType::F32, shape, values);
  }
  template <typename T>
  T* array(const std::vector<T>& values) {
    return reinterpret_cast<T*>(
        tensor(DType::U8, {1, static_cast<int64_t>(std::max<size_t>(values.size(), 1) * sizeof(T))},
               [&] {
                 std::vector<uint8_t> bytes(std::max<size_t>(values.size(), 1) * sizeof(T));
                 if (!values.empty()) std::memcpy(bytes.data(), values.data(), values.size() * sizeof(T));
                 return bytes;
               }())
            .data);
  }
  template <typename T = float>
  std::vector<T> read(const Tensor& t) {
    std::vector<T> out(static_cast<size_t>(t.elements()));
    const int64_t row = t.cols() * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < t.rows(); ++i)
      s.download(reinterpret_cast<std::byte*>(out.data()) + i * row, t.row<T>(i), row);
    s.synchronize();
    return out;
  }
  bool is_cpu() const { return s.device().type == DeviceType::Cpu; }

 private:
  ThreadPool pool_;
  std::vector<std::unique_ptr<Buffer>> buffers_;

 public:
  Stream s;
};

class OpTest : public ::testing::TestWithParam<DeviceType> {
 protected:
  bool on_cpu() const { return GetParam() == DeviceType::Cpu; }
};

// ---- values ----

// Random values that BF16 holds exactly, so a device that rounds activations to BF16 sees the same numbers.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // Nearly normal: the sum of four uniform numbers.
  float normal(float sigma = 1) {
    const uint64_t bits = engine_();
    int64_t sum = -2 * 65535;
    for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>((bits >> (16 * i)) & 0xffffu);
    return bf16(static_cast<float>(sum) * (1.732f / 65535.0f) * sigma);
  }
  std::vector<float> normals(int64_t n, float sigma = 1) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = normal(sigma);
    return v;
  }
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  static float bf16(float x) { return quant::bf16_to_float(scalar::f32_to_bf16(x)); }

 private:
  std::mt19937_64 engine_;
};

// A random weight of any format, its bytes on the machine and its values in double.
struct TestWeight {
  Weight w;
  std::vector<double> values;  // [n, k]
};
inline TestWeight random_weight(Machine& m, Random& random, DType dtype, int64_t n, int64_t k,
                                float sigma = 0.05f) {
  TestWeight t;
  t.values.resize(static_cast<size_t>(n * k));
  const auto plain = [&](auto encode, auto decode) {
    using T = decltype(encode(0.0f));
    std::vector<T> bits(static_cast<size_t>(n * k));
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] = encode(random.normal(sigma));
      t.values[i] = decode(bits[i]);
    }
    t.w.data = m.tensor(dtype, {n, k}, bits);
  };
  switch (dtype) {
    case DType::F32:
      plain([](float x) { return x; }, [](float x) { return x; });
      break;
    case DType::BF16:
      plain(scalar::f32_to_bf16, quant::bf16_to_float);
      break;
    case DType::F16:
      plain(scalar::f32_to_f16, quant::half_to_float);
      break;
    case DType::F8E4M3: {
      plain([&](float x) { return scalar::f32_to_e4m3(x / sigma); }, quant::e4m3_to_float);
      const int64_t rows = (n + 127) / 128, cols = (k + 127) / 128;
      std::vector<float> scale(static_cast<size_t>(rows * cols));
      for (float& x : scale) x = sigma * (1 + 0.25f * static_cast<float>(random.integer(0, 4)));
      for (int64_t r = 0; r < n; ++r)
        for (int64_t c = 0; c < k; ++c)
          t.values[static_cast<size_t>(r * k + c)] *= scale[static_cast<size_t>(r / 128 * cols + c / 128)];
      t.w.scale = m.f32({rows, cols}, scale);
      break;
    }
    case DType::F4E2M1: {
      std::vector<uint8_t> bytes(static_cast<size_t>(n * k / 2)), scale(static_cast<size_t>(n * k / 16));
      for (auto& b : bytes) b = static_cast<uint8_t>(random.integer(0, 255));
      for (auto& b : scale) b = scalar::f32_to_e4m3(static_cast<float>(random.integer(1, 15)));
      t.w.global_scale = 0x1p-8f;  // a power of two: the product of three factors is rounded once
      for (int64_t i = 0; i < n * k; ++i) {
        const uint8_t byte = bytes[static_cast<size_t>(i / 2)];
        t.values[static_cast<size_t>(i)] = double{quant::e2m1_to_float(i % 2 ? byte >> 4 : byte & 15)} *
                                           quant::e4m3_to_float(scale[static_cast<size_t>(i / 16)]) *
                                           t.w.global_scale;
      }
      t.w.data = m.tensor(dtype, {n, k}, bytes);
      t.w.scale = m.tensor(DType::F8E4M3, {n, k / 16}, scale);
      break;
    }
    default: {
      // Random bytes are random codes; only the 16-bit scales must be numbers of a sensible size.
      std::vector<uint8_t> bytes(static_cast<size_t>(n * row_bytes(dtype, k)));
      for (auto& b : bytes) b = static_cast<uint8_t>(random.integer(0, 255));
      const bool known = quant::with_block_type(dtype, [&]<typename Block>() {
        for (size_t at = 0; at < bytes.size(); at += sizeof(Block)) {
          auto* block = reinterpret_cast<Block*>(bytes.data() + at);
          const auto scale = [&] {
            return scalar::f32_to_f16(sigma * static_cast<float>(random.integer(1, 8)) / 64);
          };
          if constexpr (requires { block->d; }) block->d = scale();
          if constexpr (requires { block->m; }) block->m = scale();
          if constexpr (requires { block->e; }) block->e = static_cast<uint8_t>(random.integer(118, 124));
          if constexpr (std::is_same_v<Block, quant::BlockNVFP4>)
            for (uint8_t& b : block->s)
              b = scalar::f32_to_e4m3(static_cast<float>(random.integer(1, 15)) / 64);
        }
      });
      QUERN_CHECK(known, "random_weight: unknown format");
      std::vector<float> row(static_cast<size_t>(k));
      for (int64_t r = 0; r < n; ++r) {
        decode_row(dtype, reinterpret_cast<const std::byte*>(bytes.data()) + r * row_bytes(dtype, k), k,
                   row.data());
        std::copy(row.begin(), row.end(), t.values.begin() + r * k);
      }
      t.w.data = m.tensor(dtype, {n, k}, bytes);
    }
  }
  return t;
}

// ---- comparing ----

// ‖a - b‖ / ‖b‖; infinite if a is not finite.
template <typename A>
double relative_error(const std::vector<A>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double d = 0, n = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(static_cast<double>(a[i]))) return HUGE_VAL;
    d += (a[i] - b[i]) * (a[i] - b[i]);
    n += b[i] * b[i];
  }
  return n > 0 ? std::sqrt(d / n) : std::sqrt(d);
}
// Empty if a and b are the same bits, else where they first differ.
template <typename T>
std::string difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return "sizes " + std::to_string(a.size()) + " and " + std::to_string(b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0)
      return "element " + std::to_string(i) + ": " + std::to_string(a[i]) + " and " + std::to_string(b[i]);
  }
  return "";
}
inline std::vector<double> doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

// ---- batches ----

// Part of a sequence that a step runs.
struct Part {
  int32_t n_rows = 0;
  int32_t position = 0;
  int32_t slot = 0;
  Role role = Role::Prefill;
  int32_t n_pending = 0;
  std::vector<int32_t> pages = {};  // of the sequence
  std::vector<int32_t> ids = {};    // of the whole sequence, for windows; empty: zeros
};

// A batch on a machine. Decode parts must come first.
class TestBatch {
 public:
  TestBatch(Machine& m, const std::vector<Part>& parts) {
    std::vector<int32_t> ids, windows, positions, segment_of, tables;
    std::vector<Segment> segments;
    int32_t max_tokens = 0;
    for (const Part& p : parts) {
      segments.push_back({.row = static_cast<int32_t>(ids.size()),
                          .n_rows = p.n_rows,
                          .slot = p.slot,
                          .position = p.position,
                          .n_pending = p.n_pending,
                          .page_table = static_cast<int32_t>(tables.size()),
                          .role = p.role});
      tables.insert(tables.end(), p.pages.begin(), p.pages.end());
      for (int32_t i = 0; i < p.n_rows; ++i) {
        const int32_t at = p.position + i;
        const auto id = [&](int32_t j) {
          return j < 0 ? -1 : p.ids.empty() ? 0 : p.ids[static_cast<size_t>(j)];
        };
        ids.push_back(id(at));
        for (int j = 0; j < 3; ++j) windows.push_back(id(at - j));
        positions.push_back(at);
        segment_of.push_back(static_cast<int32_t>(segments.size()) - 1);
        max_tokens = std::max(max_tokens, at + 1);
      }
      if (p.role == Role::Decode) view.n_decode_rows += p.n_rows;
    }
    view.n_rows = static_cast<int64_t>(ids.size());
    view.n_segments = static_cast<int64_t>(segments.size());
    view.max_tokens = max_tokens;
    view.ids = m.array(ids);
    view.windows = m.array(windows);
    view.positions = m.array(positions);
    view.segment_of = m.array(segment_of);
    view.segments = m.array(segments);
    view.page_tables = m.array(tables);
  }
  BatchView view;
};

}  // namespace quern::test
