// The template as a tree. Depth is bounded by the parser, so that walking and freeing it is safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace quern {

struct JinjaExpression;
using JinjaExpressionPtr = std::unique_ptr<JinjaExpression>;

struct JinjaCallArguments {
  std::vector<JinjaExpressionPtr> positional;
  std::vector<std::pair<std::string, JinjaExpressionPtr>> named;
  JinjaExpressionPtr star, double_star;  // *args, **kwargs
};

struct JinjaExpression {
  enum class Kind : uint8_t {
    Constant,   // constant
    Name,       // name
    List,       // children
    Tuple,      // children
    Dict,       // children: key, value, key, value …
    Attribute,  // children[0].name
    Item,       // children[0][children[1]]
    Slice,      // children: from, to, step (null where left out); only inside Item
    Call,       // children[0](arguments)
    Filter,     // children[0] | name(arguments); children[0] null at the head of a filter block
    Test,       // children[0] is name(arguments)
    Not,
    Negative,
    Positive,
    Binary,   // children[0] name children[1], name one of + - * / // % **
    Concat,   // children joined by ~
    Compare,  // children[0] operators[0] children[1] operators[1] …
    And,
    Or,
    Conditional,  // children: test, then, else (null where left out)
  };
  Kind kind;
  int line = 1;
  int depth = 1;
  std::string name;
  JinjaValue constant;
  std::vector<JinjaExpressionPtr> children;
  std::vector<std::string> operators;
  JinjaCallArguments arguments;
};

struct JinjaStatement;
using JinjaBody = std::vector<std::unique_ptr<JinjaStatement>>;

struct JinjaSignature {
  std::vector<std::string> names;
  std::vector<JinjaExpressionPtr> defaults;  // of the last defaults.size() names
};

struct JinjaStatement {
  enum class Kind : uint8_t {
    Text,         // text
    Output,       // expressions[0]
    If,           // expressions[i] → bodies[i]; one more body is the else
    For,          // target in expressions[0] if expressions[1] (may be null): bodies[0], else bodies[1]
    Set,          // target = expressions[0]
    SetBlock,     // target = bodies[0], through expressions[0] (a filter chain) where not null
    With,         // targets[i] = expressions[i]: bodies[0]
    Macro,        // name, signature: bodies[0]
    Call,         // expressions[0] is a Call; signature of caller(): bodies[0]
    FilterBlock,  // expressions[0] filters bodies[0]
    Generation,   // bodies[0]: Hugging Face's mark of what the assistant said
    Break,
    Continue,
  };
  Kind kind;
  int line = 1;
  JinjaText text;
  std::string name;
  bool recursive = false;
  std::vector<JinjaExpressionPtr> targets;  // Name, Tuple or List of them, or Attribute of a Name (namespace)
  std::vector<JinjaExpressionPtr> expressions;
  std::vector<JinjaBody> bodies;
  JinjaSignature signature;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;  // of a Macro or Call
};

}  // namespace quern
