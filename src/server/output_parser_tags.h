// The tags of reasoning and calls, for the output parser.
#pragma once

#include <cstddef>
#include <string_view>

namespace quern::tags {

inline constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>", kCall = "<tool_call>",
                                  kCallEnd = "</tool_call>";
inline constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
inline constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
inline constexpr size_t kMaxName = 256;    // of a function or parameter
inline constexpr size_t kMaxSpace = 1024;  // between tags

inline bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace quern::tags
