#include "text/jinja_methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/check.h"
#include "base/utf8.h"
#include "text/jinja_format.h"
#include "text/jinja_interpreter.h"

namespace quern {

namespace {

using Kind = JinjaValue::Kind;
using Method = JinjaValue (*)(JinjaInterpreter&, const JinjaValue&, JinjaArguments&);

struct Entry {
  std::string_view name;
  Method method;  // null: the sandbox blocks it
};

JinjaValue list_of(JinjaInterpreter& in, std::vector<JinjaText> texts, bool tuple = false) {
  std::vector<JinjaValue> items;
  in.charge(texts.size());
  for (JinjaText& text : texts) items.push_back(in.make_text(std::move(text)));
  return tuple ? JinjaValue::tuple(std::move(items)) : JinjaValue::list(std::move(items));
}

// ---- str

template <LetterCase to>
JinjaValue str_case(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound("str", arguments, {});
  in.charge(self.as_text().size() / 8);
  return in.make_text(change_case(self.as_text(), to));
}

template <bool left, bool right>
JinjaValue str_strip(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("strip", arguments, {"chars"});
  if (!bound.has(0) || bound.get(0)->is_none()) return in.make_text(strip(self.as_text(), left, right));
  const std::string chars(bound.text(0).view());
  in.charge(self.weight() * (1 + chars.size() / 8));
  return in.make_text(strip(self.as_text(), left, right, &chars));
}

template <bool from_right>
JinjaValue str_split(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("split", arguments, {"sep", "maxsplit"});
  const int64_t limit = bound.integer(1, -1);
  in.charge(self.as_text().size() / 8);
  if (!bound.has(0) || bound.get(0)->is_none())
    return list_of(in, split(self.as_text(), nullptr, limit, from_right));
  const std::string separator(bound.text(0).view());
  if (separator.empty()) throw Error("empty separator");
  return list_of(in, split(self.as_text(), &separator, limit, from_right));
}

// Bytes [from, to) that Python's optional character positions name; false where start is past the end.
bool clip_chars(std::string_view text, const JinjaBound& bound, size_t start_at, size_t& from, size_t& to) {
  from = 0;
  to = text.size();
  if (!bound.has(start_at) && !bound.has(start_at + 1)) return true;
  const std::vector<size_t> offsets = char_offsets(text);
  const int64_t n = static_cast<int64_t>(offsets.size()) - 1;
  const auto clip = [&](int64_t at) { return at < 0 ? std::max<int64_t>(at + n, 0) : at; };
  const int64_t start = clip(bound.integer(start_at, 0)),
                end = std::min(clip(bound.integer(start_at + 1, n)), n);
  if (start > n || start > end) return false;
  from = offsets[static_cast<size_t>(start)];
  to = offsets[static_cast<size_t>(end)];
  return true;
}

template <bool at_end>
JinjaValue str_starts(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound(at_end ? "endswith" : "startswith", arguments, {"prefix", "start", "end"});
  size_t from, to;
  if (!clip_chars(self.as_text().view(), bound, 1, from, to)) return false;
  const std::string_view text = self.as_text().view().substr(from, to - from);
  const auto matches = [&](const JinjaText& part) {
    return at_end ? text.ends_with(part.view()) : text.starts_with(part.view());
  };
  if (!bound.need(0).is(Kind::Tuple)) return matches(bound.text(0));
  for (const JinjaValue& part : in.iterate(*bound.get(0))) {
    if (!part.is_string()) throw Error("tuple for startswith must only contain str");
    if (matches(part.as_text())) return true;
  }
  return false;
}

JinjaValue str_replace(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("replace", arguments, {"old", "new", "count"});
  const JinjaText &from = bound.text(0), &to = bound.text(1), &text = self.as_text();
  const int64_t limit = bound.integer(2, -1);
  // The result's size is known only after the search; refuse what cannot fit before making it.
  const uint64_t most = from.empty() ? text.size() + 1 : text.size() / from.size();
  if (to.size() > from.size() && most * (to.size() - from.size()) > in.text_limit()) {
    uint64_t found = 0;
    for (size_t at = 0; !from.empty() && (at = text.view().find(from.view(), at)) != std::string_view::npos;
         at += from.size())
      ++found;
    if (from.empty()) found = most;
    if (limit >= 0) found = std::min<uint64_t>(found, static_cast<uint64_t>(limit));
    if (found * to.size() > in.text_limit()) {
      throw Error(fmt::format("a text grew past the limit of {} bytes", in.text_limit()));
    }
  }
  in.charge(text.size() / 16);
  return in.make_text(replace(text, from.view(), to, limit));
}

// find, rfind, index, rindex: in characters.
template <bool from_right, bool must>
JinjaValue str_find(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("find", arguments, {"sub", "start", "end"});
  const std::string_view all = self.as_text().view();
  in.charge(1 + all.size() / 16);
  size_t from, to;
  if (clip_chars(all, bound, 1, from, to)) {
    const std::string_view text = all.substr(from, to - from);
    const size_t at = from_right ? text.rfind(bound.text(0).view()) : text.find(bound.text(0).view());
    if (at != text.npos) return static_cast<int64_t>(count_chars(all.substr(0, from + at)));
  }
  if (must) throw Error("substring not found");
  return -1;
}

JinjaValue str_count(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("count", arguments, {"sub", "start", "end"});
  const std::string_view all = self.as_text().view(), sub = bound.text(0).view();
  in.charge(1 + all.size() / 16);
  size_t from, to;
  if (!clip_chars(all, bound, 1, from, to)) return 0;
  const std::string_view text = all.substr(from, to - from);
  if (sub.empty()) return static_cast<int64_t>(count_chars(text) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = text.find(sub, at)) != text.npos; at += sub.size()) ++n;
  return n;
}

JinjaValue str_join(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("join", arguments, {"iterable"});
  JinjaText out;
  bool first = true;
  size_t i = 0;
  for (const JinjaValue& part : in.iterate(bound.need(0))) {
    if (!part.is_string()) {
      throw Error(fmt::format("sequence item {}: expected str instance, {} found", i, part.type_name()));
    }
    if (!first) out.append(self.as_text());
    first = false;
    out.append(part.as_text());
    if (out.size() > in.text_limit()) break;  // make_text refuses it
    ++i;
  }
  return in.make_text(std::move(out));
}

JinjaValue str_splitlines(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("splitlines", arguments, {"keepends"});
  in.charge(self.as_text().size() / 8);
  return list_of(in, split_lines(self.as_text(), bound.flag(0, false)));
}

template <bool from_right>
JinjaValue str_partition(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("partition", arguments, {"sep"});
  const JinjaText &text = self.as_text(), &separator = bound.text(0);
  if (separator.empty()) throw Error("empty separator");
  const size_t at = from_right ? text.view().rfind(separator.view()) : text.view().find(separator.view());
  if (at == std::string_view::npos) {
    return from_right ? list_of(in, {JinjaText(), JinjaText(), text}, true)
                      : list_of(in, {text, JinjaText(), JinjaText()}, true);
  }
  return list_of(
      in,
      {text.slice(0, at), text.slice(at, separator.size()), text.slice(at + separator.size(), text.size())},
      true);
}

template <bool suffix>
JinjaValue str_remove(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound(suffix ? "removesuffix" : "removeprefix", arguments, {"part"});
  const JinjaText &text = self.as_text(), &part = bound.text(0);
  if (suffix ? !text.view().ends_with(part.view()) : !text.view().starts_with(part.view())) return self;
  return in.make_text(suffix ? text.slice(0, text.size() - part.size())
                             : text.slice(part.size(), text.size()));
}

// ljust, rjust, center, zfill: side -1 text left, 1 right, 0 centred.
template <int side>
JinjaValue str_pad(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("just", arguments, {"width", "fillchar"});
  const JinjaText& text = self.as_text();
  const std::string fill(bound.has(1) ? bound.text(1).view() : " ");
  if (count_chars(fill) != 1) throw Error("the fill character must be exactly one character long");
  const int64_t width = (bound.need(0), bound.integer(0, 0)),
                n = static_cast<int64_t>(count_chars(text.view()));
  if (width <= n) return self;
  if (width > static_cast<int64_t>(in.text_limit())) {
    throw Error(fmt::format("a text grew past the limit of {} bytes", in.text_limit()));
  }
  const int64_t pad = width - n;
  const int64_t left = side < 0 ? 0 : side > 0 ? pad : pad / 2 + (pad & width & 1);
  in.charge(static_cast<uint64_t>(pad) / 8);
  JinjaText out;
  for (int64_t i = 0; i < left; ++i) out.append(fill, true);
  out.append(text);
  for (int64_t i = left; i < pad; ++i) out.append(fill, true);
  return in.make_text(std::move(out));
}

JinjaValue str_zfill(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("zfill", arguments, {"width"});
  const JinjaText& text = self.as_text();
  const int64_t n = static_cast<int64_t>(count_chars(text.view()));
  const int64_t width = (bound.need(0), bound.integer(0, 0));
  if (width <= n) return self;
  if (width > static_cast<int64_t>(in.text_limit())) {
    throw Error(fmt::format("a text grew past the limit of {} bytes", in.text_limit()));
  }
  const bool sign = text.view().starts_with('-') || text.view().starts_with('+');
  JinjaText out = text.slice(0, sign ? 1 : 0);
  out.append(std::string(static_cast<size_t>(width - n), '0'), true);
  out.append(text, sign ? 1 : 0, text.size() - (sign ? 1 : 0));
  return in.make_text(std::move(out));
}

JinjaValue str_format(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  return in.make_text(format_braces(in, self.as_text(), arguments));
}

// Every character of a text that is not empty passes.
template <bool (*passes)(char32_t)>
JinjaValue str_all(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments&) {
  const std::string_view text = self.as_text().view();
  in.charge(text.size() / 16);
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (!c.valid || !passes(c.code_point)) return false;
    i += c.size;
  }
  return !text.empty();
}
bool is_alnum(char32_t c) { return is_python_alpha(c) || is_python_digit(c); }

// islower, isupper: a cased character, and none of the other case.
template <bool (*passes)(char32_t), bool (*fails)(char32_t)>
JinjaValue str_cased(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments&) {
  const std::string_view text = self.as_text().view();
  in.charge(text.size() / 16);
  bool any = false;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (c.valid && fails(c.code_point)) return false;
    any |= c.valid && passes(c.code_point);
    i += c.size;
  }
  return any;
}

constexpr Entry kStringMethods[] = {
    {"capitalize", str_case<LetterCase::Capital>},
    {"center", str_pad<0>},
    {"count", str_count},
    {"endswith", str_starts<true>},
    {"find", str_find<false, false>},
    {"format", str_format},
    {"index", str_find<false, true>},
    {"isalnum", str_all<is_alnum>},
    {"isalpha", str_all<is_python_alpha>},
    {"isdecimal", str_all<is_python_digit>},
    {"isdigit", str_all<is_python_digit>},
    {"islower", str_cased<is_python_lower, is_python_upper>},
    {"isnumeric", str_all<is_python_digit>},
    {"isspace", str_all<is_python_space>},
    {"isupper", str_cased<is_python_upper, is_python_lower>},
    {"join", str_join},
    {"ljust", str_pad<-1>},
    {"lower", str_case<LetterCase::Lower>},
    {"lstrip", str_strip<true, false>},
    {"partition", str_partition<false>},
    {"removeprefix", str_remove<false>},
    {"removesuffix", str_remove<true>},
    {"replace", str_replace},
    {"rfind", str_find<true, false>},
    {"rindex", str_find<true, true>},
    {"rjust", str_pad<1>},
    {"rpartition", str_partition<true>},
    {"rsplit", str_split<true>},
    {"rstrip", str_strip<false, true>},
    {"split", str_split<false>},
    {"splitlines", str_splitlines},
    {"startswith", str_starts<false>},
    {"strip", str_strip<true, true>},
    {"swapcase", str_case<LetterCase::Swap>},
    {"title", str_case<LetterCase::Title>},
    {"upper", str_case<LetterCase::Upper>},
    {"zfill", str_zfill},
};

// ---- dict

enum class DictPart { Keys, Values, Items };
template <DictPart part>
JinjaValue dict_part(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound("dict", arguments, {});
  std::vector<JinjaValue> out;
  const auto& items = self.object_as<JinjaDict>().items;
  in.charge(items.size());
  for (const auto& [key, value] : items) {
    out.push_back(part == DictPart::Keys     ? key
                  : part == DictPart::Values ? value
                                             : JinjaValue::tuple({key, value}));
  }
  return JinjaValue::list(std::move(out));
}

JinjaValue dict_get(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("get", arguments, {"key", "default"});
  in.charge(bound.need(0).weight());
  if (const JinjaValue* value = self.object_as<JinjaDict>().find(*bound.get(0))) return *value;
  return bound.has(1) ? *bound.get(1) : JinjaValue::none();
}

JinjaValue copy(JinjaInterpreter&, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound("copy", arguments, {});
  if (self.is(Kind::List)) return JinjaValue::list(self.items());  // pop() must not reach the original
  return self;
}

constexpr Entry kDictMethods[] = {
    {"clear", nullptr},
    {"copy", copy},
    {"get", dict_get},
    {"items", dict_part<DictPart::Items>},
    {"keys", dict_part<DictPart::Keys>},
    {"pop", nullptr},
    {"popitem", nullptr},
    {"setdefault", nullptr},
    {"update", nullptr},
    {"values", dict_part<DictPart::Values>},
};

// ---- list, tuple

JinjaValue sequence_index(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("index", arguments, {"value"});
  in.charge(self.weight());
  for (size_t i = 0; i < self.items().size(); ++i) {
    if (equal(self.items()[i], bound.need(0))) return static_cast<int64_t>(i);
  }
  throw Error("the value is not in the list");
}

JinjaValue sequence_count(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("count", arguments, {"value"});
  in.charge(self.weight());
  int64_t n = 0;
  for (const JinjaValue& item : self.items()) n += equal(item, bound.need(0));
  return n;
}

JinjaValue list_pop(JinjaInterpreter& in, const JinjaValue& self, JinjaArguments& arguments) {
  JinjaBound bound("pop", arguments, {"index"});
  auto& items = self.items();
  if (items.empty()) throw Error("pop from empty list");
  int64_t at = bound.integer(0, -1);
  if (at < 0) at += static_cast<int64_t>(items.size());
  if (at < 0 || at >= static_cast<int64_t>(items.size())) throw Error("pop index out of range");
  in.charge(1 + (items.size() - static_cast<size_t>(at)) / 16);
  JinjaValue value = items[static_cast<size_t>(at)];
  items.erase(items.begin() + at);
  return value;
}

constexpr Entry kListMethods[] = {
    {"append", nullptr},       {"copy", copy},      {"count", sequence_count}, {"extend", nullptr},
    {"index", sequence_index}, {"insert", nullptr}, {"pop", list_pop},         {"remove", nullptr},
    {"reverse", nullptr},      {"sort", nullptr},
};
constexpr Entry kTupleMethods[] = {{"count", sequence_count}, {"index", sequence_index}};

JinjaValue float_is_integer(JinjaInterpreter&, const JinjaValue& self, JinjaArguments&) {
  return std::isfinite(self.as_float()) && self.as_float() == std::floor(self.as_float());
}
constexpr Entry kFloatMethods[] = {{"is_integer", float_is_integer}};

template <size_t N>
JinjaValue bind_method(const JinjaValue& object, std::string_view name, const Entry (&entries)[N]) {
  for (const Entry& entry : entries) {
    if (entry.name != name) continue;
    if (entry.method == nullptr) {
      return JinjaValue::undefined(
          fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, object.type_name()));
    }
    auto bound = std::make_shared<JinjaCallable>();
    bound->name = name;
    bound->call = [object, method = entry.method](JinjaInterpreter& in, JinjaArguments& arguments) {
      return method(in, object, arguments);
    };
    return JinjaValue(Kind::Callable, std::move(bound));
  }
  return JinjaValue();
}

// ---- globals

JinjaValue range(JinjaInterpreter& in, const JinjaValue&, JinjaArguments& arguments) {
  JinjaBound bound("range", arguments, {"start", "stop", "step"});
  int64_t start = 0, stop, step = bound.integer(2, 1);
  if (bound.need(0).is(Kind::BigInt) || (bound.has(1) && bound.get(1)->is(Kind::BigInt))) {
    throw Error("range too big: the sandbox blocks ranges larger than 100000");
  }
  for (size_t i = 0; i < 3; ++i) {
    if (bound.has(i) && !bound.get(i)->is_integer()) {
      throw Error(fmt::format("'{}' object cannot be interpreted as an integer", bound.get(i)->type_name()));
    }
  }
  if (bound.has(1)) {
    start = bound.integer(0, 0);
    stop = bound.integer(1, 0);
  } else {
    stop = bound.integer(0, 0);
  }
  if (step == 0) throw Error("range() arg 3 must not be zero");
  const BigInt span = step > 0 ? BigInt(stop) - start : BigInt(start) - stop;
  const BigInt stride = abs(BigInt(step));
  const BigInt n = span <= 0 ? BigInt(0) : BigInt((span + stride - 1) / stride);
  if (n > 100'000) throw Error("range too big: the sandbox blocks ranges larger than 100000");
  in.charge(static_cast<uint64_t>(n));
  std::vector<JinjaValue> items;
  for (int64_t i = 0; i < n; ++i) items.emplace_back(start + i * step);
  JinjaValue value = JinjaValue::list(std::move(items));
  value.object_as<JinjaSequence>().shown = step == 1 ? fmt::format("range({}, {})", start, stop)
                                                     : fmt::format("range({}, {}, {})", start, stop, step);
  return value;
}

std::vector<std::pair<JinjaValue, JinjaValue>> pairs_of(JinjaInterpreter& in, JinjaArguments& arguments) {
  std::vector<std::pair<JinjaValue, JinjaValue>> items;
  if (arguments.positional.size() > 1) throw Error("dict expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const JinjaValue& from = arguments.positional[0];
    if (from.is(Kind::Dict)) {
      items = from.object_as<JinjaDict>().items;
    } else {
      for (const JinjaValue& pair : in.iterate(from)) {
        std::vector<JinjaValue> two = in.iterate(pair);
        if (two.size() != 2)
          throw Error(
              fmt::format("dictionary update sequence element has length {}; 2 is required", two.size()));
        items.emplace_back(std::move(two[0]), std::move(two[1]));
      }
    }
  }
  for (auto& [name, value] : arguments.named) items.emplace_back(JinjaText(name, true), value);
  in.charge(items.size());
  return items;
}

JinjaValue make_dict(JinjaInterpreter& in, const JinjaValue&, JinjaArguments& arguments) {
  return JinjaValue::dict(pairs_of(in, arguments));
}

JinjaValue make_namespace(JinjaInterpreter& in, const JinjaValue&, JinjaArguments& arguments) {
  const JinjaValue dict = JinjaValue::dict(pairs_of(in, arguments));
  std::vector<std::pair<std::string, JinjaValue>> attributes;
  for (const auto& [key, value] : dict.object_as<JinjaDict>().items) {
    if (key.is_string()) attributes.emplace_back(key.as_text().view(), value);
  }
  return in.make_namespace(std::move(attributes));
}

JinjaValue raise_exception(JinjaInterpreter& in, const JinjaValue&, JinjaArguments& arguments) {
  JinjaBound bound("raise_exception", arguments, {"message"});
  throw Error(std::string(in.text_of(bound.need(0)).view()));
}

JinjaValue strftime_now(JinjaInterpreter& in, const JinjaValue&, JinjaArguments& arguments) {
  JinjaBound bound("strftime_now", arguments, {"format"});
  const std::string format(bound.text(0).view());
  if (format.size() > 1000) throw Error("strftime_now: the format is longer than 1000 bytes");
  const std::time_t now = in.now();
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(16'384, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return in.make_text(JinjaText(std::move(out), bound.text(0).all_trusted()));
}

// An object whose state changes: items in turn.
JinjaValue make_cycler(JinjaInterpreter&, const JinjaValue&, JinjaArguments& arguments) {
  if (arguments.positional.empty()) throw Error("at least one item has to be provided");
  struct State : JinjaObject {
    std::vector<JinjaValue> items;
    size_t at = 0;
  };
  auto state = std::make_shared<State>();
  state->items = arguments.positional;
  auto next = std::make_shared<JinjaCallable>();
  next->name = "next";
  next->call = [state](JinjaInterpreter&, JinjaArguments&) {
    const JinjaValue value = state->items[state->at];
    state->at = (state->at + 1) % state->items.size();
    return value;
  };
  auto reset = std::make_shared<JinjaCallable>();
  reset->name = "reset";
  reset->call = [state](JinjaInterpreter&, JinjaArguments&) {
    state->at = 0;
    return JinjaValue::none();
  };
  auto cycler = std::make_shared<JinjaCallable>();
  cycler->name = "cycler";
  cycler->call = [](JinjaInterpreter&, JinjaArguments&) -> JinjaValue {
    throw Error("'Cycler' object is not callable");
  };
  cycler->attributes = {{"next", JinjaValue(Kind::Callable, std::move(next))},
                        {"reset", JinjaValue(Kind::Callable, std::move(reset))}};
  return JinjaValue(Kind::Callable, std::move(cycler));
}

// Empty the first time it is called, the separator afterwards.
JinjaValue make_joiner(JinjaInterpreter&, const JinjaValue&, JinjaArguments& arguments) {
  JinjaBound bound("joiner", arguments, {"sep"});
  const JinjaValue separator = bound.has(0) ? *bound.get(0) : JinjaValue(JinjaText(", ", true));
  auto joiner = std::make_shared<JinjaCallable>();
  joiner->name = "joiner";
  joiner->call = [separator, used = false](JinjaInterpreter&, JinjaArguments&) mutable {
    if (std::exchange(used, true)) return separator;
    return JinjaValue(JinjaText());
  };
  return JinjaValue(Kind::Callable, std::move(joiner));
}

constexpr Entry kGlobals[] = {
    {"cycler", make_cycler},
    {"dict", make_dict},
    {"joiner", make_joiner},
    {"namespace", make_namespace},
    {"raise_exception", raise_exception},
    {"range", range},
    {"strftime_now", strftime_now},
};

}  // namespace

JinjaValue find_method(const JinjaValue& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::String:
      return bind_method(object, name, kStringMethods);
    case Kind::Dict:
      return bind_method(object, name, kDictMethods);
    case Kind::List:
      return bind_method(object, name, kListMethods);
    case Kind::Tuple:
      return bind_method(object, name, kTupleMethods);
    case Kind::Float:
      return bind_method(object, name, kFloatMethods);
    default:
      return JinjaValue();
  }
}

JinjaValue find_global(std::string_view name) { return bind_method(JinjaValue(), name, kGlobals); }

}  // namespace quern
