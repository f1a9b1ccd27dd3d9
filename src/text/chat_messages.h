// Conversations as clients send them, made into what chat templates take, and the prompt of one request.
//
//   role          developer is system. System messages at the head become one, joined by an empty line, in order; a later
//                 one stays where it is if the template writes it there, else it joins the head.
//   content       null or absent is ""; an array of text parts is joined without a separator; other parts are refused
//                 by their place.
//   tool calls    arguments given as a JSON string are parsed; "" and null are {}; what is no JSON object is refused.
//   reasoning     "reasoning" is another name of reasoning_content.
//   prefill       a last message of the assistant, without tool calls, is text to continue: it follows the generation
//                 prompt byte for byte, with thinking closed before it (its own reasoning_content, or nothing, inside).
//                 One that has reasoning and no content continues the reasoning.
//
// Every Error names the place: messages[3].content[0].
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "text/chat_template.h"

namespace quern {

struct ChatMessages {
  Json messages;  // without the prefill
  bool has_prefill = false;
  std::string prefill_reasoning, prefill_content;
};
// `late_system`: the template takes system messages anywhere. `take_prefill`: look for one.
ChatMessages prepare_messages(const Json& messages, bool late_system, bool take_prefill);

// A tool call's arguments as an object: given as one, or as a string that holds one (halves of surrogate pairs in
// it are mended). Null and "" are {}. `place` begins the Error.
Json call_arguments(const Json& arguments, const std::string& place);

struct ChatPrompt {
  RenderedPrompt prompt;
  bool thinking = false;  // the reply starts inside a block of reasoning
  std::string prefill;    // what of the reply's content is in the prompt already
};
// Prepares, renders and appends the prefill. add_generation_prompt is true unless `variables` says otherwise.
ChatPrompt render_chat(const ChatTemplate& chat_template, const Json& messages, const Json& tools,
                       const Json& variables);

// Effort as clients name it → as templates of this family do: none; minimal, low → low; medium; high, xhigh, max →
// xhigh. Throws Error for another name.
std::string_view canonical_effort(std::string_view name);

}  // namespace quern
