// + - * / // % ** as Python defines them: integers of any size, floor division, a quotient that is a float.
#include <fmt/format.h>

#include <cmath>

#include "base/check.h"
#include "text/jinja_format.h"
#include "text/jinja_interpreter.h"

namespace quern {

namespace {

using Kind = JinjaValue::Kind;

constexpr uint64_t kMaxBits = 14'280;  // 4300 decimal digits

[[noreturn]] void unsupported(std::string_view op, const JinjaValue& a, const JinjaValue& b) {
  throw Error(
      fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op, a.type_name(), b.type_name()));
}

uint64_t bits(const BigInt& v) { return v == 0 ? 0 : boost::multiprecision::msb(abs(v)) + 1; }

BigInt floor_divide(const BigInt& a, const BigInt& b, BigInt& remainder) {
  BigInt quotient;
  boost::multiprecision::divide_qr(a, b, quotient, remainder);
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    --quotient;
    remainder += b;
  }
  return quotient;
}

double float_mod(double a, double b) {
  double m = std::fmod(a, b);
  if (m != 0) {
    if ((b < 0) != (m < 0)) m += b;
  } else {
    m = std::copysign(0.0, b);
  }
  return m;
}

double float_floor_divide(double a, double b) {
  const double mod = std::fmod(a, b);
  double quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

JinjaValue integer_power(const BigInt& a, const BigInt& b) {
  if (b < 0) {
    if (a == 0) throw Error("0.0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(a), static_cast<double>(b));
  }
  if (bits(a) > 1 && (b > kMaxBits || bits(a) * static_cast<uint64_t>(b) > 2 * kMaxBits)) {
    throw Error("an integer grew past 4300 digits");
  }
  if (bits(a) <= 1)
    return a == 0 ? JinjaValue(b == 0 ? 1 : 0) : a == 1 || b % 2 == 0 ? JinjaValue(1) : JinjaValue(-1);
  return BigInt(boost::multiprecision::pow(a, static_cast<unsigned>(b)));
}

JinjaValue integer_binary(std::string_view op, const JinjaValue& a, const JinjaValue& b) {
  if (!a.is(Kind::BigInt) && !b.is(Kind::BigInt)) {
    int64_t r;
    if (op == "+" && !__builtin_add_overflow(a.as_int(), b.as_int(), &r)) return r;
    if (op == "-" && !__builtin_sub_overflow(a.as_int(), b.as_int(), &r)) return r;
    if (op == "*" && !__builtin_mul_overflow(a.as_int(), b.as_int(), &r)) return r;
  }
  const BigInt x = big(a), y = big(b);
  if (op == "+") return BigInt(x + y);
  if (op == "-") return BigInt(x - y);
  if (op == "*") {
    if (bits(x) + bits(y) > 2 * kMaxBits) throw Error("an integer grew past 4300 digits");
    return BigInt(x * y);
  }
  if (op == "**") return integer_power(x, y);
  if (y == 0) throw Error(op == "/" ? "division by zero" : "integer division or modulo by zero");
  if (op == "/") {
    if (bits(x) > 1024 || bits(y) > 1024) throw Error("integer division result too large for a float");
    return static_cast<double>(static_cast<long double>(x) / static_cast<long double>(y));
  }
  BigInt remainder;
  BigInt quotient = floor_divide(x, y, remainder);
  return op == "//" ? JinjaValue(std::move(quotient)) : JinjaValue(std::move(remainder));
}

JinjaValue float_binary(std::string_view op, double x, double y) {
  if (op == "+") return x + y;
  if (op == "-") return x - y;
  if (op == "*") return x * y;
  if (op == "**") {
    if (x == 0 && y < 0) throw Error("0.0 cannot be raised to a negative power");
    if (x < 0 && y != std::floor(y)) throw Error("a power with a complex result is not supported");
    const double power = std::pow(x, y);
    if (std::isinf(power) && std::isfinite(x) && std::isfinite(y))
      throw Error("numerical result out of range");
    return power;
  }
  if (y == 0)
    throw Error(op == "/"    ? "float division by zero"
                : op == "//" ? "float floor division by zero"
                             : "float modulo");
  if (op == "/") return x / y;
  return op == "//" ? float_floor_divide(x, y) : float_mod(x, y);
}

}  // namespace

JinjaValue JinjaInterpreter::binary(std::string_view op, const JinjaValue& a, const JinjaValue& b) {
  charge(1 + (a.weight() + b.weight()) / 4);
  for (const JinjaValue* v : {&a, &b}) {
    if (v->is_undefined() && !(op == "%" && a.is_string())) throw Error(v->undefined_message());
  }
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return integer_binary(op, a, b);
    return float_binary(op, to_double(a), to_double(b));
  }
  if (op == "+" && a.is_string() && b.is_string()) {
    JinjaText sum = a.as_text();
    sum.append(b.as_text());
    return make_text(std::move(sum));
  }
  if (op == "+" && a.is_sequence() && a.kind() == b.kind()) {
    std::vector<JinjaValue> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    charge(items.size());
    return a.is(Kind::List) ? JinjaValue::list(std::move(items)) : JinjaValue::tuple(std::move(items));
  }
  if (op == "%" && a.is_string()) return make_text(format_percent(a.as_text(), b, limits_.text_bytes));
  if (op == "*") {
    const bool swapped = a.is_integer();
    const JinjaValue& repeated = swapped ? b : a;
    const JinjaValue& times = swapped ? a : b;
    if (times.is_integer() && (repeated.is_string() || repeated.is_sequence())) {
      if (times.is(Kind::BigInt)) throw Error("cannot fit 'int' into an index-sized integer");
      const uint64_t n = times.as_int() < 0 ? 0 : static_cast<uint64_t>(times.as_int());
      if (repeated.is_string()) {
        const JinjaText& text = repeated.as_text();
        if (!text.empty() && n > limits_.text_bytes / text.size()) {
          throw Error(fmt::format("a text grew past the limit of {} bytes", limits_.text_bytes));
        }
        charge(n);
        JinjaText out;
        for (uint64_t i = 0; i < n && !text.empty(); ++i) out.append(text);
        return make_text(std::move(out));
      }
      const auto& items = repeated.items();
      if (!items.empty()) charge(n > limits_.steps ? limits_.steps + 1 : n * items.size());
      std::vector<JinjaValue> out;
      for (uint64_t i = 0; i < n && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
      return repeated.is(Kind::List) ? JinjaValue::list(std::move(out)) : JinjaValue::tuple(std::move(out));
    }
  }
  if (op == "+" && a.is_string()) {
    throw Error(fmt::format("can only concatenate str (not \"{}\") to str", b.type_name()));
  }
  unsupported(op, a, b);
}

}  // namespace quern
