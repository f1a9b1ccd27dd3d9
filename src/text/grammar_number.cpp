#include "text/grammar_number.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "base/check.h"

namespace quern {
namespace {

using Id = GrammarSource::Id;

constexpr int kIntDigits = 19, kFractionDigits = 20;
// Decimals of so many digits are different doubles. Readers compare doubles, so a number that is to lie strictly
// inside a bound has no more of them: 0.09999999999999999999 reads as 0.1.
constexpr int kDoubleDigits = 15;

struct Decimal {
  bool negative = false;
  std::string whole = "0";  // no leading zeros
  std::string fraction;     // no trailing zeros
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

Decimal decimal(const Json& v) {
  std::string text;
  if (v.kind() == Json::Kind::BigInt) {
    text = v.big_digits();
  } else if (v.is_int()) {
    text = std::to_string(v.as_int());
  } else {
    char buffer[400];
    const auto r = std::to_chars(buffer, buffer + sizeof buffer, v.as_double(), std::chars_format::fixed);
    text.assign(buffer, r.ptr);
  }
  Decimal d;
  d.negative = text[0] == '-';
  if (d.negative) text.erase(0, 1);
  const size_t point = text.find('.');
  d.whole = text.substr(0, point);
  if (point != std::string::npos) d.fraction = text.substr(point + 1);
  while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
  if (d.fraction.size() > kFractionDigits) throw Error("a bound with more than 20 digits after the point");
  if (d.is_zero()) d.negative = false;
  return d;
}

// Natural numbers by their digits: longer is larger.
int compare(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}
std::string plus_one(std::string n) {
  size_t i = n.size();
  while (i > 0 && n[i - 1] == '9') n[--i] = '0';
  if (i == 0) return "1" + n;
  ++n[i - 1];
  return n;
}
std::string minus_one(std::string n) {  // n > 0
  size_t i = n.size();
  while (n[i - 1] == '0') n[--i] = '9';
  --n[i - 1];
  if (n.size() > 1 && n[0] == '0') n.erase(0, 1);
  return n;
}

class Digits {
 public:
  // Fractions of at most `places` digits, those of the bounds included.
  Digits(GrammarSource& source, int places) : s_(source), places_(places) {}

  Id range(char low, char high) {
    return s_.chars({{static_cast<char32_t>(low), static_cast<char32_t>(high)}});
  }
  Id any(int min, int max) { return s_.repeat(range('0', '9'), min, max); }
  Id nothing() { return s_.alt({}); }
  Id empty() { return s_.bytes(""); }

  // low ≤ n ≤ high
  Id naturals(const std::string& low, const std::string& high) {
    std::vector<Id> parts;
    for (size_t n = low.size(); n <= high.size() && compare(low, high) <= 0; ++n) {
      const std::string a = n == low.size() ? low : "1" + std::string(n - 1, '0');
      const std::string b = n == high.size() ? high : std::string(n, '9');
      parts.push_back(same_length(a, b, 0));
    }
    return s_.alt(std::move(parts));
  }

  // ".f" with 0.f ≥ 0.F, or > where exclusive
  Id fraction_from(const std::string& F, bool exclusive) {
    return s_.seq({s_.bytes("."), from(F, 0, exclusive)});
  }
  // ".f" with 0.f ≤ 0.F, or <
  Id fraction_to(const std::string& F, bool exclusive) {
    return s_.seq({s_.bytes("."), to(F, 0, exclusive)});
  }
  Id fraction_between(const std::string& F, const std::string& G, bool low_exclusive, bool high_exclusive) {
    return s_.seq({s_.bytes("."), between(F, G, 0, low_exclusive, high_exclusive)});
  }
  Id any_fraction() { return s_.seq({s_.bytes("."), any(1, places_)}); }

 private:
  Id same_length(const std::string& a, const std::string& b, size_t i) {
    const int left = static_cast<int>(a.size() - i);
    if (left == 0) return empty();
    if (a.find_first_not_of('0', i) == std::string::npos && b.find_first_not_of('9', i) == std::string::npos)
      return any(left, left);
    if (a[i] == b[i]) return s_.seq({range(a[i], a[i]), same_length(a, b, i + 1)});
    const std::string nines(a.size(), '9'), zeros(a.size(), '0');
    std::vector<Id> parts{s_.seq({range(a[i], a[i]), same_length(a, nines, i + 1)}),
                          s_.seq({range(b[i], b[i]), same_length(zeros, b, i + 1)})};
    if (b[i] - a[i] > 1)
      parts.push_back(
          s_.seq({range(static_cast<char>(a[i] + 1), static_cast<char>(b[i] - 1)), any(left - 1, left - 1)}));
    return s_.alt(std::move(parts));
  }

  Id from(const std::string& F, size_t i, bool exclusive) {
    const int left = places_ - static_cast<int>(i);
    if (i == F.size()) {
      return exclusive ? positive(left) : any(i == 0, left);
    }
    std::vector<Id> parts{s_.seq({range(F[i], F[i]), from(F, i + 1, exclusive)})};
    if (F[i] < '9') parts.push_back(s_.seq({range(static_cast<char>(F[i] + 1), '9'), any(0, left - 1)}));
    return s_.alt(std::move(parts));
  }

  Id to(const std::string& F, size_t i, bool exclusive) {
    const int left = places_ - static_cast<int>(i);
    if (i == F.size()) return exclusive ? nothing() : s_.repeat(range('0', '0'), i == 0, left);
    std::vector<Id> parts{s_.seq({range(F[i], F[i]), to(F, i + 1, exclusive)})};
    if (F[i] > '0') parts.push_back(s_.seq({range('0', static_cast<char>(F[i] - 1)), any(0, left - 1)}));
    if (i > 0) parts.push_back(empty());
    return s_.alt(std::move(parts));
  }

  // At most so many digits, not all of them zero.
  Id positive(int left) {
    if (left <= 0) return nothing();
    return s_.alt(
        {s_.seq({range('1', '9'), any(0, left - 1)}), s_.seq({range('0', '0'), positive(left - 1)})});
  }

  // Like to(), but not zero.
  Id to_positive(const std::string& F, size_t i, bool exclusive) {
    const int left = places_ - static_cast<int>(i);
    if (i == F.size()) return nothing();
    if (F[i] == '0') return s_.seq({range('0', '0'), to_positive(F, i + 1, exclusive)});
    std::vector<Id> parts{s_.seq({range('0', '0'), positive(left - 1)}),
                          s_.seq({range(F[i], F[i]), to(F, i + 1, exclusive)})};
    if (F[i] > '1') parts.push_back(s_.seq({range('1', static_cast<char>(F[i] - 1)), any(0, left - 1)}));
    return s_.alt(std::move(parts));
  }

  Id between(const std::string& F, const std::string& G, size_t i, bool low_exclusive, bool high_exclusive) {
    if (i >= F.size()) return low_exclusive ? to_positive(G, i, high_exclusive) : to(G, i, high_exclusive);
    if (i >= G.size()) return nothing();  // F > G
    if (F[i] > G[i]) return nothing();
    if (F[i] == G[i]) return s_.seq({range(F[i], F[i]), between(F, G, i + 1, low_exclusive, high_exclusive)});
    std::vector<Id> parts{s_.seq({range(F[i], F[i]), from(F, i + 1, low_exclusive)}),
                          s_.seq({range(G[i], G[i]), to(G, i + 1, high_exclusive)})};
    if (G[i] - F[i] > 1)
      parts.push_back(s_.seq({range(static_cast<char>(F[i] + 1), static_cast<char>(G[i] - 1)),
                              any(0, places_ - static_cast<int>(i) - 1)}));
    return s_.alt(std::move(parts));
  }

  GrammarSource& s_;
  const int places_;
};

// A bound on a magnitude.
struct Bound {
  std::string whole, fraction;
  bool exclusive = false;
};

const Bound kHighest{std::string(kIntDigits, '9'), "", false};

// How many places a fraction may have so that numbers beside an exclusive bound are told from it.
int places_beside(const Bound& bound) {
  if (!bound.exclusive) return kFractionDigits;
  const int whole = bound.whole == "0" ? 0 : static_cast<int>(bound.whole.size());
  return std::max(0, kDoubleDigits - whole);
}

// The bound with at most `places` digits behind the point, moved inwards: what is cut off makes it inclusive.
Bound shortened(Bound bound, int places, bool is_low) {
  if (bound.fraction.size() <= static_cast<size_t>(places)) return bound;
  bound.fraction.resize(static_cast<size_t>(places));
  bound.exclusive = false;
  if (is_low) {
    std::string digits = plus_one(bound.whole + bound.fraction);
    const size_t whole = digits.size() - bound.fraction.size();
    bound.whole = digits.substr(0, whole);
    bound.fraction = digits.substr(whole);
  }
  while (!bound.fraction.empty() && bound.fraction.back() == '0') bound.fraction.pop_back();
  return bound;
}

Id magnitudes(GrammarSource& s, Bound low, Bound high, bool integer) {
  const int places = integer ? kFractionDigits : std::min(places_beside(low), places_beside(high));
  low = shortened(std::move(low), places, true);
  high = shortened(std::move(high), places, false);
  Digits d(s, places);
  if (high.whole.size() > kIntDigits) high = kHighest;
  if (low.whole.size() > kIntDigits) throw Error("a bound beyond 19 digits");
  // The whole numbers, with any fraction strictly inside the bounds' own.
  std::string first = low.whole, last = high.whole;
  if (integer) {
    if (!low.fraction.empty() || low.exclusive) first = plus_one(first);
    if (high.fraction.empty() && high.exclusive) {
      if (last == "0") return d.nothing();
      last = minus_one(last);
    }
    return d.naturals(first, last);
  }
  const int order = compare(low.whole, high.whole);
  if (order > 0) return d.nothing();
  std::vector<Id> parts;
  const bool low_itself = low.fraction.empty() && !low.exclusive;
  const bool high_itself = !high.fraction.empty() || !high.exclusive;
  if (order == 0) {
    std::vector<Id> tails;
    if (places > 0)
      tails.push_back(d.fraction_between(low.fraction, high.fraction, low.exclusive, high.exclusive));
    if (low_itself && high_itself) tails.push_back(d.empty());
    return s.seq({s.bytes(low.whole), s.alt(std::move(tails))});
  }
  std::vector<Id> tails;
  if (places > 0) tails.push_back(d.fraction_from(low.fraction, low.exclusive));
  if (low_itself) tails.push_back(d.empty());
  parts.push_back(s.seq({s.bytes(low.whole), s.alt(std::move(tails))}));
  tails.clear();
  if (places > 0) tails.push_back(d.fraction_to(high.fraction, high.exclusive));
  if (high_itself) tails.push_back(d.empty());
  parts.push_back(s.seq({s.bytes(high.whole), s.alt(std::move(tails))}));
  const Id between = d.naturals(plus_one(low.whole), minus_one(high.whole));
  parts.push_back(places > 0 ? s.seq({between, s.optional(d.any_fraction())}) : between);
  return s.alt(std::move(parts));
}

Id bounded(GrammarSource& s, const NumberBounds& b, bool integer) {
  std::vector<Id> parts;
  const Decimal low = b.min ? decimal(*b.min) : Decimal{true, kHighest.whole, ""};
  const Decimal high = b.max ? decimal(*b.max) : Decimal{false, kHighest.whole, ""};
  const bool low_exclusive = b.min && b.min_exclusive, high_exclusive = b.max && b.max_exclusive;
  const Bound zero{"0", "", false}, beyond_zero{"0", "", true};
  if (!high.negative)
    parts.push_back(magnitudes(s, low.negative ? zero : Bound{low.whole, low.fraction, low_exclusive},
                               {high.whole, high.fraction, high_exclusive}, integer));
  if (low.negative) {
    Bound nearest = high.negative ? Bound{high.whole, high.fraction, high_exclusive} : beyond_zero;
    parts.push_back(
        s.seq({s.bytes("-"), magnitudes(s, nearest, {low.whole, low.fraction, low_exclusive}, integer)}));
  }
  return s.alt(std::move(parts));
}

Id unbounded_integer(GrammarSource& s) {
  Digits d(s, kFractionDigits);
  return s.seq({s.optional(s.bytes("-")),
                s.alt({s.bytes("0"), s.seq({d.range('1', '9'), d.any(0, kIntDigits - 1)})})});
}

}  // namespace

Id json_integer(GrammarSource& s, const NumberBounds& b) {
  return b.min || b.max ? bounded(s, b, true) : unbounded_integer(s);
}

Id json_number(GrammarSource& s, const NumberBounds& b) {
  if (b.min || b.max) return bounded(s, b, false);
  Digits d(s, kFractionDigits);
  const Id exponent =
      s.seq({s.chars({{'E', 'E'}, {'e', 'e'}}), s.optional(s.chars({{'+', '+'}, {'-', '-'}})), d.any(1, 2)});
  return s.seq({unbounded_integer(s), s.optional(d.any_fraction()), s.optional(exponent)});
}

}  // namespace quern
