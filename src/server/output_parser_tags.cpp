// Where in what the parser holds a tag, a call or the end of a value is. Each answer is Yes, No, or Partial: what has
// come may still become one.
#include "server/output_parser_tags.h"

#include <algorithm>

#include "server/output_parser.h"

namespace quern {

using namespace tags;

OutputParser::Match OutputParser::match(size_t at, std::string_view literal) const {
  const size_t n = std::min(literal.size(), pending_.size() - at);
  if (pending_.compare(at, n, literal, 0, n) != 0) return Match::No;
  return n == literal.size() ? Match::Yes : Match::Partial;
}

bool OutputParser::is_token(size_t at, std::string_view tag) const {
  return at < pending_.size() && marks_[at] == 1 && match(at, tag) == Match::Yes;
}

OutputParser::Match OutputParser::match_tag(size_t at, std::string_view tag) const {
  if (is_token(at, tag)) return Match::Yes;
  return options_.tags_are_tokens ? Match::No : match(at, tag);
}

size_t OutputParser::skip_space(size_t at) const {
  while (at < pending_.size() && is_space(pending_[at])) ++at;
  return at;
}

// <function=NAME> and what must follow it: a parameter or a closing tag. `end` is behind the '>'.
OutputParser::Match OutputParser::match_header(size_t at, bool at_end, std::string& name, size_t& end) const {
  const Match head = match(at, kFunction);
  if (head != Match::Yes) return at_end ? Match::No : head;
  const size_t begin = at + kFunction.size();
  const size_t close = pending_.find_first_of(">\r\n<", begin);
  if (std::min(close, pending_.size()) - begin > kMaxName) return Match::No;
  if (close == pending_.npos) return at_end ? Match::No : Match::Partial;
  if (pending_[close] != '>' || close == begin) return Match::No;
  name = pending_.substr(begin, close - begin);
  if (name.size() > 2 && (name[0] == '"' || name[0] == '\'') && name.back() == name[0])
    name = name.substr(1, name.size() - 2);
  end = close + 1;
  const size_t next = skip_space(end);
  if (next - end > kMaxSpace) return Match::No;
  if (next == pending_.size()) return at_end ? Match::No : Match::Partial;
  Match best = Match::No;
  for (std::string_view tag : {kParameter, kFunctionEnd, kCallEnd}) best = std::max(best, match(next, tag));
  return best == Match::Partial && at_end ? Match::No : best;
}

// A call that opens at `at`, with <tool_call> or without. `header`: where <function= or the JSON is.
OutputParser::Match OutputParser::match_call(size_t at, bool at_end, bool declared_only, size_t& header,
                                             bool& json) const {
  json = false;
  std::string name;
  size_t end = 0;
  const bool token = is_token(at, kCall);
  Match tag = token ? Match::Yes : match(at, kCall);
  if (tag == Match::Partial) return at_end ? Match::No : Match::Partial;
  if (tag == Match::Yes) {
    header = skip_space(at + kCall.size());
    if (header - at > kMaxSpace) return Match::No;
    if (header == pending_.size()) return at_end ? Match::No : Match::Partial;
    const bool doubtful = declared_only || (options_.tags_are_tokens && !token);
    if (pending_[header] == '{') {
      json = true;
      return options_.tags_are_tokens && !token ? Match::No : Match::Yes;
    }
    const Match found = match_header(header, at_end, name, end);
    return found == Match::Yes && doubtful && !tools_.has(name) ? Match::No : found;
  }
  header = at;
  const Match found = match_header(at, at_end, name, end);
  return found == Match::Yes && !tools_.has(name) ? Match::No : found;
}

// Whether a value ends at `at`, where its last newline or its closing tag is. `tag_end`: what belongs to the end.
OutputParser::Match OutputParser::match_value_end(size_t at, bool at_end, size_t& tag_end) const {
  const auto partial = [&] { return at_end ? Match::No : Match::Partial; };
  size_t q = at;
  if (pending_[q] == '\r') {
    if (q + 1 == pending_.size()) return partial();
    if (pending_[q + 1] != '\n') return Match::No;
    ++q;
  }
  if (pending_[q] == '\n') ++q;
  if (q == pending_.size()) {
    tag_end = q;  // where the turn ends, one newline belongs to the missing tag
    return !at_end ? Match::Partial : turn_ended_ ? Match::Yes : Match::No;
  }
  const auto follows = [&](size_t from, std::initializer_list<std::string_view> tags) {
    const size_t next = skip_space(from);
    if (next == pending_.size())
      return at_end ? Match::Yes : next - from > kMaxSpace ? Match::No : Match::Partial;
    if (next - from > kMaxSpace) return Match::No;
    Match best = Match::No;
    for (std::string_view tag : tags) best = std::max(best, match(next, tag));
    return best == Match::Partial ? partial() : best;
  };
  Match best = Match::No;
  if (const Match tag = match(q, kParameterEnd); tag == Match::Yes) {
    tag_end = q + kParameterEnd.size();
    return follows(tag_end, {kParameter, kFunctionEnd, kCallEnd});
  } else if (tag == Match::Partial) {
    best = partial();
  }
  if (const Match tag = match(q, kFunctionEnd); tag == Match::Yes) {
    tag_end = q;
    return follows(q + kFunctionEnd.size(), {kCallEnd});
  } else if (tag == Match::Partial) {
    best = partial();
  }
  if (const Match tag = match_tag(q, kCallEnd); tag == Match::Yes) {
    tag_end = q;
    return Match::Yes;
  } else if (tag == Match::Partial) {
    best = partial();
  }
  return best;
}

}  // namespace quern
