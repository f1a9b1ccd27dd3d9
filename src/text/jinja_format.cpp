#include "text/jinja_format.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <optional>

#include "base/check.h"
#include "base/utf8.h"
#include "text/jinja_interpreter.h"

namespace quern {

namespace {

using Kind = JinjaValue::Kind;

constexpr int64_t kMaxWidth = 100'000;

// What follows the colon of {:…} or the percent sign, in one form.
struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false, zero = false, comma = false, underscore = false;
  int64_t width = 0;
  std::optional<int64_t> precision;
  char type = 0;
};

int64_t read_number(std::string_view text, size_t& at) {
  int64_t value = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    value = value * 10 + (text[at++] - '0');
    if (value > kMaxWidth) throw Error(fmt::format("a format width past {} is not supported", kMaxWidth));
  }
  return value;
}

JinjaText pad(JinjaText body, const Spec& spec, char align, size_t sign_size = 0) {
  const int64_t missing = spec.width - static_cast<int64_t>(count_chars(body.view()));
  if (missing <= 0) return body;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  JinjaText out;
  if (align == '=') out.append(body, 0, sign_size);
  for (int64_t i = 0; i < left; ++i) out.append(spec.fill, true);
  align == '=' ? out.append(body, sign_size, body.size() - sign_size) : out.append(body);
  for (int64_t i = left; i < missing; ++i) out.append(spec.fill, true);
  return out;
}

std::string group(const std::string& digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out;
}

std::string in_base(BigInt value, unsigned base, bool upper) {
  if (value == 0) return "0";
  std::string out;
  while (value > 0) {
    const unsigned digit = static_cast<unsigned>(value % base);
    out += (upper ? "0123456789ABCDEF" : "0123456789abcdef")[digit];
    value /= base;
  }
  return {out.rbegin(), out.rend()};
}

JinjaText finish_number(const std::string& sign, std::string prefix, std::string digits, std::string tail,
                        Spec spec) {
  if (spec.comma || spec.underscore) {
    digits = group(digits, spec.comma ? ',' : '_',
                   spec.type == 'x' || spec.type == 'X' || spec.type == 'b' || spec.type == 'o' ? 4 : 3);
  }
  const std::string head = sign + prefix;
  char align = spec.align != 0 ? spec.align : '>';
  if (spec.zero && spec.align == 0) {
    align = '=';
    spec.fill = "0";
  }
  return pad(JinjaText(head + digits + tail, true), spec, align, head.size());
}

JinjaText format_integer(const BigInt& value, const Spec& spec) {
  const std::string sign = value < 0 ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  const BigInt magnitude = abs(value);
  std::string prefix, digits;
  switch (spec.type) {
    case 'x':
    case 'X':
      digits = in_base(magnitude, 16, spec.type == 'X');
      if (spec.alternate) prefix = spec.type == 'x' ? "0x" : "0X";
      break;
    case 'o':
      digits = in_base(magnitude, 8, false);
      if (spec.alternate) prefix = "0o";
      break;
    case 'b':
      digits = in_base(magnitude, 2, false);
      if (spec.alternate) prefix = "0b";
      break;
    default:
      digits = magnitude.str();
  }
  return finish_number(sign, prefix, digits, "", spec);
}

JinjaText format_float(double value, const Spec& spec) {
  const std::string sign = std::signbit(value) && !std::isnan(value) ? "-"
                           : spec.sign == '-'                        ? ""
                                                                     : std::string(1, spec.sign);
  const double magnitude = std::fabs(value);
  std::string text;
  if (!std::isfinite(value)) {
    text = std::isnan(value) ? "nan" : "inf";
    if (spec.type == 'E' || spec.type == 'F' || spec.type == 'G') text = std::isnan(value) ? "NAN" : "INF";
    Spec plain = spec;
    plain.comma = plain.underscore = false;
    return finish_number(sign, "", text, spec.type == '%' ? "%" : "", plain);
  }
  if (spec.type == 0 && !spec.precision) {
    text = python_float(magnitude);
  } else {
    const int precision = static_cast<int>(spec.precision.value_or(6));
    if (precision > 1000) throw Error("a format precision past 1000 is not supported");
    const char type = spec.type == '%' ? 'f' : spec.type == 0 || spec.type == 'n' ? 'g' : spec.type;
    const double scaled = spec.type == '%' ? magnitude * 100 : magnitude;
    char layout[16];
    std::snprintf(layout, sizeof layout, "%%%s.*%c", spec.alternate ? "#" : "", type);
    const int size = std::snprintf(nullptr, 0, layout, precision, scaled);
    text.resize(static_cast<size_t>(size) + 1);
    std::snprintf(text.data(), text.size(), layout, precision, scaled);
    text.pop_back();
    // Without a type, at least one digit follows the point.
    if (spec.type == 0 && text.find_first_of(".e") == text.npos) text += ".0";
  }
  const size_t point = std::min(text.find_first_of(".e"), text.size());
  return finish_number(sign, "", text.substr(0, point), text.substr(point) + (spec.type == '%' ? "%" : ""),
                       spec);
}

JinjaText first_chars(const JinjaText& text, int64_t n) {
  const std::vector<size_t> offsets = char_offsets(text.view());
  return static_cast<int64_t>(offsets.size()) - 1 <= n ? text
                                                       : text.slice(0, offsets[static_cast<size_t>(n)]);
}

JinjaText conversion(char type, const JinjaValue& value, const Spec& spec, size_t limit) {
  const bool is_float = std::string_view("eEfFgG%").find(type) != std::string_view::npos;
  if (is_float) {
    if (!value.is_number()) throw Error(fmt::format("must be real number, not {}", value.type_name()));
    return format_float(to_double(value), spec);
  }
  if (value.is(Kind::Float)) {
    if (!std::isfinite(value.as_float())) throw Error("cannot convert a float infinity or NaN to integer");
    return format_integer(BigInt(value.as_float()), spec);
  }
  if (!value.is_integer()) {
    throw Error(fmt::format("%{} format: a real number is required, not {}", type, value.type_name()));
  }
  (void)limit;
  return format_integer(big(value), spec);
}

}  // namespace

JinjaText format_percent(const JinjaText& format, const JinjaValue& values, size_t limit) {
  const std::string_view f = format.view();
  const bool is_tuple = values.is(Kind::Tuple);
  size_t next = 0;
  bool named = false;
  const auto take = [&]() -> const JinjaValue& {
    if (is_tuple) {
      if (next >= values.items().size()) throw Error("not enough arguments for format string");
      return values.items()[next++];
    }
    if (next++ > 0) throw Error("not enough arguments for format string");
    return values;
  };
  JinjaText out;
  size_t begin = 0;
  while (true) {
    const size_t percent = f.find('%', begin);
    out.append(format, begin, std::min(percent, f.size()) - begin);
    if (percent == f.npos) break;
    size_t at = percent + 1;
    const JinjaValue* value = nullptr;
    if (at < f.size() && f[at] == '(') {
      const size_t close = f.find(')', at);
      if (close == f.npos) throw Error("incomplete format key");
      if (!values.is(Kind::Dict)) throw Error("format requires a mapping");
      const std::string_view key = f.substr(at + 1, close - at - 1);
      value = values.object_as<JinjaDict>().find(key);
      if (value == nullptr) throw Error(fmt::format("format key '{}' is missing", key));
      named = true;
      at = close + 1;
    }
    Spec spec;
    bool left = false;
    for (; at < f.size() && std::string_view("-+ #0").find(f[at]) != std::string_view::npos; ++at) {
      left |= f[at] == '-';
      spec.zero |= f[at] == '0';
      spec.alternate |= f[at] == '#';
      if (f[at] == '+' || (f[at] == ' ' && spec.sign == '-')) spec.sign = f[at];
    }
    if (at < f.size() && f[at] == '*') throw Error("a format width of * is not supported");
    spec.width = read_number(f, at);
    if (at < f.size() && f[at] == '.') {
      ++at;
      spec.precision = read_number(f, at);
    }
    while (at < f.size() && (f[at] == 'l' || f[at] == 'h' || f[at] == 'L')) ++at;
    if (at >= f.size()) throw Error("incomplete format");
    const char type = f[at];
    begin = at + 1;
    if (type == '%') {
      out.append(format, at, 1);
      continue;
    }
    if (value == nullptr) value = &take();
    if (type == 's' || type == 'r' || type == 'a') {
      JinjaText text = type == 's' ? to_text(*value, limit) : to_repr(*value, limit);
      if (spec.precision) text = first_chars(text, *spec.precision);
      out.append(pad(std::move(text), spec, left ? '<' : '>'));
    } else if (type == 'c') {
      JinjaText text;
      if (value->is_string() && count_chars(value->as_text().view()) == 1) {
        text = value->as_text();
      } else if (value->is(Kind::Int) && value->as_int() >= 0 && value->as_int() <= 0x10ffff) {
        std::string bytes;
        append_utf8(bytes, static_cast<char32_t>(value->as_int()));
        text = JinjaText(bytes, true);
      } else {
        throw Error("%c requires int or char");
      }
      out.append(pad(std::move(text), spec, left ? '<' : '>'));
    } else if (std::string_view("diuxXoeEfFgG").find(type) != std::string_view::npos) {
      spec.type = type == 'i' || type == 'u' ? 'd' : type;
      if (left) spec.align = '<';
      if (spec.precision && std::string_view("dxXo").find(spec.type) != std::string_view::npos) {
        throw Error("a format precision for an integer is not supported");
      }
      out.append(conversion(spec.type, *value, spec, limit));
    } else {
      throw Error(fmt::format("unsupported format character '{}'", type));
    }
    if (out.size() > limit) throw Error(fmt::format("a text grew past the limit of {} bytes", limit));
  }
  if (is_tuple ? next < values.items().size()
               : next == 0 && !named && !values.is_undefined() && !values.is(Kind::Dict) &&
                     !values.is(Kind::List)) {
    throw Error("not all arguments converted during string formatting");
  }
  return out;
}

namespace {

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
  };
  const size_t first = text.empty() ? 0 : static_cast<size_t>(decode_utf8(text, 0).size);
  if (first > 0 && is_align(first)) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    at = first + 1;
  } else if (is_align(0)) {
    spec.align = text[0];
    at = 1;
  }
  if (at < text.size() && std::string_view("+- ").find(text[at]) != std::string_view::npos)
    spec.sign = text[at++];
  if (at < text.size() && text[at] == '#') spec.alternate = (++at, true);
  if (at < text.size() && text[at] == '0') spec.zero = (++at, true);
  spec.width = read_number(text, at);
  if (at < text.size() && text[at] == ',') spec.comma = (++at, true);
  if (at < text.size() && text[at] == '_') spec.underscore = (++at, true);
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (at >= text.size() || text[at] < '0' || text[at] > '9')
      throw Error("format specifier missing precision");
    spec.precision = read_number(text, at);
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) throw Error(fmt::format("invalid format specifier '{}'", text));
  return spec;
}

JinjaText apply_spec(JinjaInterpreter& in, const JinjaValue& value, std::string_view text) {
  if (text.empty()) return in.text_of(value);
  Spec spec = parse_spec(text);
  if (value.is_string()) {
    if (spec.type != 0 && spec.type != 's') {
      throw Error(fmt::format("unknown format code '{}' for object of type 'str'", spec.type));
    }
    if (spec.align == '=') throw Error("'=' alignment not allowed in string format specifier");
    if (spec.zero && spec.align == 0) spec.fill = "0";
    const JinjaText body = spec.precision ? first_chars(value.as_text(), *spec.precision) : value.as_text();
    return pad(body, spec, spec.align == 0 ? '<' : spec.align);
  }
  if (value.is_number()) {
    static constexpr std::string_view kInteger = "dxXob", kFloat = "eEfFgG%n";
    if (value.is(Kind::Bool) && spec.type == 0) {
      return pad(in.text_of(value), spec, spec.align == 0 ? '<' : spec.align);
    }
    if (kFloat.find(spec.type) != kFloat.npos || (spec.type == 0 && value.is(Kind::Float))) {
      return format_float(to_double(value), spec);
    }
    if (value.is_integer() && (spec.type == 0 || kInteger.find(spec.type) != kInteger.npos)) {
      if (spec.precision) throw Error("precision not allowed in integer format specifier");
      return format_integer(big(value), spec);
    }
    throw Error(
        fmt::format("unknown format code '{}' for object of type '{}'", spec.type, value.type_name()));
  }
  throw Error(fmt::format("unsupported format string passed to {}.__format__", value.type_name()));
}

}  // namespace

JinjaText format_braces(JinjaInterpreter& in, const JinjaText& format, const JinjaArguments& arguments) {
  const std::string_view f = format.view();
  JinjaText out;
  size_t automatic = 0;
  int numbering = 0;  // 1 automatic, 2 manual
  for (size_t at = 0; at < f.size();) {
    const size_t brace = f.find_first_of("{}", at);
    out.append(format, at, std::min(brace, f.size()) - at);
    if (brace == f.npos) break;
    if (brace + 1 < f.size() && f[brace + 1] == f[brace]) {
      out.append(format, brace, 1);
      at = brace + 2;
      continue;
    }
    if (f[brace] == '}') throw Error("Single '}' encountered in format string");
    const size_t close = f.find('}', brace);
    if (close == f.npos) throw Error("expected '}' before end of string");
    std::string_view field = f.substr(brace + 1, close - brace - 1);
    if (field.find('{') != field.npos) throw Error("a format field inside a format field is not supported");
    at = close + 1;
    std::string_view spec;
    if (const size_t colon = field.find(':'); colon != field.npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char convert = 0;
    if (field.size() >= 2 && field[field.size() - 2] == '!') {
      convert = field.back();
      field.remove_suffix(2);
    }
    size_t end = field.find_first_of(".[");
    const std::string_view name = field.substr(0, end);
    JinjaValue value;
    size_t index = 0;
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) {
      const int kind = name.empty() ? 1 : 2;
      if (numbering != 0 && numbering != kind) {
        throw Error("cannot switch between automatic field numbering and manual field specification");
      }
      numbering = kind;
      size_t digits = 0;
      index = name.empty() ? automatic++ : static_cast<size_t>(read_number(name, digits));
      if (index >= arguments.positional.size()) {
        throw Error(fmt::format("Replacement index {} out of range for positional args tuple", index));
      }
      value = arguments.positional[index];
    } else {
      bool found = false;
      for (const auto& [key, named] : arguments.named) {
        if (key == name) {
          value = named;
          found = true;
        }
      }
      if (!found) throw Error(fmt::format("format key '{}' is missing", name));
    }
    while (end != field.npos && end < field.size()) {
      if (field[end] == '.') {
        const size_t stop = std::min(field.find_first_of(".[", end + 1), field.size());
        value = in.attribute(value, field.substr(end + 1, stop - end - 1));
        end = stop;
      } else {
        const size_t stop = field.find(']', end);
        if (stop == field.npos) throw Error("Missing ']' in format string");
        const std::string key(field.substr(end + 1, stop - end - 1));
        const bool digits =
            !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == key.npos;
        value = in.item(value, digits ? JinjaValue(static_cast<int64_t>(std::stoll(key)))
                                      : JinjaValue(JinjaText(key, true)));
        end = stop + 1;
      }
    }
    if (convert == 'r' || convert == 'a')
      value = to_repr(value, in.text_limit());
    else if (convert == 's')
      value = in.text_of(value);
    else if (convert != 0)
      throw Error(fmt::format("Unknown conversion specifier '{}'", convert));
    out.append(apply_spec(in, value, spec));
    if (out.size() > in.text_limit())
      throw Error(fmt::format("a text grew past the limit of {} bytes", in.text_limit()));
  }
  return out;
}

}  // namespace quern
