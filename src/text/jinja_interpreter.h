// Runs a parsed template. It holds the budget that makes a hostile template an Error: every evaluation, list item and
// comparison costs steps, every text made costs bytes, every call costs depth; limits in JinjaLimits.
//
// Scopes are Jinja's: `if` has none; each turn of a loop, each with, macro call, block set and filter block has one that
// sees outwards; an assignment goes to the innermost.
#pragma once

#include <ctime>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_value.h"

namespace quern {

struct JinjaLimits {
  uint64_t steps = 5'000'000;
  size_t bytes = size_t{128} << 20;      // of all texts made on the way
  size_t text_bytes = size_t{32} << 20;  // of one text, and of the output
  int depth = 500;                       // expressions, blocks and calls inside each other
};

class JinjaInterpreter {
 public:
  explicit JinjaInterpreter(const JinjaLimits& limits, std::time_t now) : limits_(limits), now_(now) {}
  ~JinjaInterpreter();
  JinjaInterpreter(const JinjaInterpreter&) = delete;
  JinjaInterpreter& operator=(const JinjaInterpreter&) = delete;

  // Throws Error("chat template line N: …").
  JinjaText render(const JinjaBody& body, std::vector<std::pair<std::string, JinjaValue>> variables);

  // Where the output stood after the last turn of a for loop, in the output itself and not in a captured text, over
  // each of these objects (index → bytes; npos where no loop went over it). Set before render.
  void watch(const std::vector<JinjaValue>& objects);
  const std::vector<size_t>& watched_ends() const { return watched_ends_; }

  // ---- what filters, tests and methods use

  void charge(uint64_t steps = 1);
  JinjaValue make_text(JinjaText text);        // charges its bytes
  JinjaText text_of(const JinjaValue& value);  // str(value), charged
  size_t text_limit() const { return limits_.text_bytes; }
  // The items of anything that can be iterated; consumes a generator.
  std::vector<JinjaValue> iterate(const JinjaValue& value);
  JinjaValue call(const JinjaValue& callee, JinjaArguments& arguments);
  JinjaValue filter(std::string_view name, const JinjaValue& value, JinjaArguments& arguments);
  bool test(std::string_view name, const JinjaValue& value, JinjaArguments& arguments);
  JinjaValue attribute(const JinjaValue& object, std::string_view name);             // object.name
  JinjaValue item(const JinjaValue& object, const JinjaValue& key);                  // object[key]
  JinjaValue binary(std::string_view op, const JinjaValue& a, const JinjaValue& b);  // + - * / // % **
  std::time_t now() const { return now_; }
  JinjaValue make_namespace(std::vector<std::pair<std::string, JinjaValue>> attributes);

 private:
  struct Scope {
    std::shared_ptr<Scope> parent;
    std::vector<std::pair<std::string, JinjaValue>> variables;
    void set(std::string_view name, JinjaValue value);
  };
  using ScopePtr = std::shared_ptr<Scope>;
  struct LoopState;
  enum class Flow : uint8_t { Normal, Break, Continue };
  class Depth;

  Flow run(const JinjaBody& body, const ScopePtr& scope);
  Flow run(const JinjaStatement& statement, const ScopePtr& scope);
  Flow run_for(const JinjaStatement& statement, const JinjaValue& iterable, const ScopePtr& scope, int depth);
  // The body's output as a text; Flow other than Normal drops it.
  Flow capture(const JinjaBody& body, const ScopePtr& scope, JinjaText& text);
  JinjaValue make_macro(const JinjaStatement& statement, const ScopePtr& scope);
  JinjaValue call_macro(const JinjaStatement& statement, const ScopePtr& scope, JinjaArguments& arguments);
  void assign(const JinjaExpression& target, const JinjaValue& value, const ScopePtr& scope);
  void emit(const JinjaText& text);

  JinjaValue evaluate(const JinjaExpression& e, const ScopePtr& scope);
  JinjaValue lookup(const std::string& name, const ScopePtr& scope);
  JinjaValue compare(const JinjaExpression& e, const ScopePtr& scope);
  JinjaValue concat(const JinjaExpression& e, const ScopePtr& scope);
  JinjaValue slice(const JinjaValue& object, const JinjaExpression& slice, const ScopePtr& scope);
  JinjaValue apply_filter(const JinjaExpression& e, const JinjaValue& value, const ScopePtr& scope);
  // A filter chain whose innermost filter takes `value`.
  JinjaValue apply_filters(const JinjaExpression& e, const JinjaValue& value, const ScopePtr& scope);
  JinjaArguments evaluate_arguments(const JinjaCallArguments& arguments, const ScopePtr& scope);
  JinjaValue loop_attribute(const JinjaValue& loop, std::string_view name);

  const JinjaLimits limits_;
  const std::time_t now_;
  uint64_t steps_ = 0;
  size_t bytes_ = 0;
  int depth_ = 0;
  int line_ = 1;
  JinjaText* out_ = nullptr;
  JinjaText output_;
  std::unordered_map<const JinjaObject*, size_t> watched_;
  std::vector<size_t> watched_ends_;
  // What may refer to itself is emptied at the end, so that nothing leaks.
  std::vector<ScopePtr> captured_;
  std::vector<std::shared_ptr<JinjaObject>> namespaces_, changed_loops_;
};

// Python's way of passing arguments: positional, then by name; get() is null where neither was given.
class JinjaBound {
 public:
  // Throws Error for a surplus, unknown or doubled argument, naming `function`.
  JinjaBound(std::string_view function, const JinjaArguments& arguments,
             std::initializer_list<std::string_view> names);
  const JinjaValue* get(size_t i) const { return values_[i]; }
  bool has(size_t i) const { return values_[i] != nullptr; }
  const JinjaValue& need(size_t i) const;
  int64_t integer(size_t i, int64_t otherwise) const;  // None counts as not given
  bool flag(size_t i, bool otherwise) const { return values_[i] ? values_[i]->truth() : otherwise; }
  const JinjaText& text(size_t i) const;  // Error where it is no string

 private:
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const JinjaValue*> values_;
};

}  // namespace quern
