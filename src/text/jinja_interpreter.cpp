#include "text/jinja_interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/utf8.h"
#include "text/jinja_filters.h"
#include "text/jinja_methods.h"

namespace quern {

using Kind = JinjaValue::Kind;
using ExpressionKind = JinjaExpression::Kind;
using StatementKind = JinjaStatement::Kind;

struct JinjaInterpreter::LoopState : JinjaObject {
  std::vector<JinjaValue> items;
  size_t index0 = 0;
  int recursion = 0;  // depth0
  const JinjaStatement* statement = nullptr;
  ScopePtr outer;
  bool changed_called = false;
  JinjaValue changed_value;
};

class JinjaInterpreter::Depth {
 public:
  explicit Depth(JinjaInterpreter& i) : interpreter_(i) {
    if (++i.depth_ > i.limits_.depth) {
      --i.depth_;
      throw Error(fmt::format("calls and blocks nest deeper than {}", i.limits_.depth));
    }
  }
  ~Depth() { --interpreter_.depth_; }

 private:
  JinjaInterpreter& interpreter_;
};

JinjaInterpreter::~JinjaInterpreter() {
  for (auto& scope : captured_) scope->variables.clear();
  for (auto& object : namespaces_) static_cast<JinjaNamespace&>(*object).attributes.clear();
  for (auto& object : changed_loops_) static_cast<LoopState&>(*object).changed_value = JinjaValue();
}

void JinjaInterpreter::charge(uint64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps)
    throw Error(fmt::format("the template takes more than {} steps", limits_.steps));
}

JinjaValue JinjaInterpreter::make_text(JinjaText text) {
  if (text.size() > limits_.text_bytes) {
    throw Error(fmt::format("a text grew past the limit of {} bytes", limits_.text_bytes));
  }
  bytes_ += text.size() + 64;
  if (bytes_ > limits_.bytes)
    throw Error(fmt::format("the template makes more than {} bytes of text", limits_.bytes));
  return text;
}

JinjaText JinjaInterpreter::text_of(const JinjaValue& value) {
  if (value.is_string()) return value.as_text();
  JinjaText text = to_text(value, limits_.text_bytes);
  charge(text.size() / 16);
  return text;
}

void JinjaInterpreter::emit(const JinjaText& text) {
  if (out_->size() + text.size() > limits_.text_bytes) {
    throw Error(fmt::format("the output is longer than the limit of {} bytes", limits_.text_bytes));
  }
  bytes_ += text.size();
  if (bytes_ > limits_.bytes)
    throw Error(fmt::format("the template makes more than {} bytes of text", limits_.bytes));
  out_->append(text);
}

std::vector<JinjaValue> JinjaInterpreter::iterate(const JinjaValue& value) {
  switch (value.kind()) {
    case Kind::Undefined:
      return {};
    case Kind::List:
    case Kind::Tuple:
      charge(value.items().size());
      return value.items();
    case Kind::Generator: {
      auto& generator = value.object_as<JinjaSequence>();
      std::vector<JinjaValue> rest(generator.items.begin() + static_cast<ptrdiff_t>(generator.next),
                                   generator.items.end());
      generator.next = generator.items.size();
      charge(rest.size());
      return rest;
    }
    case Kind::String: {
      const JinjaText& text = value.as_text();
      std::vector<JinjaValue> chars;
      for (size_t i = 0; i < text.size();) {
        const int size = decode_utf8(text.view(), i).size;
        charge();
        chars.push_back(make_text(text.slice(i, size)));
        i += size;
      }
      return chars;
    }
    case Kind::Dict: {
      const auto& items = value.object_as<JinjaDict>().items;
      charge(items.size());
      std::vector<JinjaValue> keys;
      keys.reserve(items.size());
      for (const auto& [key, unused] : items) keys.push_back(key);
      return keys;
    }
    default:
      throw Error(fmt::format("'{}' object is not iterable", value.type_name()));
  }
}

void JinjaInterpreter::watch(const std::vector<JinjaValue>& objects) {
  watched_ends_.assign(objects.size(), std::string::npos);
  for (size_t i = 0; i < objects.size(); ++i) watched_[objects[i].object().get()] = i;
}

JinjaText JinjaInterpreter::render(const JinjaBody& body,
                                   std::vector<std::pair<std::string, JinjaValue>> variables) {
  auto root = std::make_shared<Scope>();
  root->variables = std::move(variables);
  captured_.push_back(root);
  out_ = &output_;
  try {
    run(body, root);
  } catch (const Error& e) {
    throw Error(fmt::format("chat template line {}: {}", line_, e.what()));
  }
  return std::move(output_);
}

// ---- statements

void JinjaInterpreter::Scope::set(std::string_view name, JinjaValue value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

JinjaInterpreter::Flow JinjaInterpreter::run(const JinjaBody& body, const ScopePtr& scope) {
  Depth depth(*this);
  for (const auto& statement : body) {
    charge();
    if (statement->kind == StatementKind::Text) {
      emit(statement->text);
      continue;
    }
    line_ = statement->line;
    const Flow flow = run(*statement, scope);
    if (flow != Flow::Normal) return flow;
  }
  return Flow::Normal;
}

JinjaInterpreter::Flow JinjaInterpreter::run(const JinjaStatement& s, const ScopePtr& scope) {
  switch (s.kind) {
    case StatementKind::Text:
      break;
    case StatementKind::Output: {
      const JinjaValue value = evaluate(*s.expressions[0], scope);
      value.is_string() ? emit(value.as_text()) : emit(text_of(value));
      break;
    }
    case StatementKind::If:
      for (size_t i = 0; i < s.expressions.size(); ++i) {
        if (evaluate(*s.expressions[i], scope).truth()) return run(s.bodies[i], scope);
      }
      if (s.bodies.size() > s.expressions.size()) return run(s.bodies.back(), scope);
      break;
    case StatementKind::For:
      return run_for(s, evaluate(*s.expressions[0], scope), scope, 0);
    case StatementKind::Set:
      assign(*s.targets[0], evaluate(*s.expressions[0], scope), scope);
      break;
    case StatementKind::SetBlock: {
      JinjaText text;
      const Flow flow = capture(s.bodies[0], scope, text);
      if (flow != Flow::Normal) return flow;
      JinjaValue value = make_text(std::move(text));
      if (s.expressions[0]) value = apply_filters(*s.expressions[0], value, scope);
      assign(*s.targets[0], value, scope);
      break;
    }
    case StatementKind::With: {
      auto inner = std::make_shared<Scope>(Scope{scope, {}});
      std::vector<JinjaValue> values;
      for (const auto& e : s.expressions) values.push_back(evaluate(*e, scope));
      for (size_t i = 0; i < values.size(); ++i) assign(*s.targets[i], values[i], inner);
      return run(s.bodies[0], inner);
    }
    case StatementKind::Macro:
      scope->set(s.name, make_macro(s, scope));
      break;
    case StatementKind::Call: {
      const JinjaExpression& call_expression = *s.expressions[0];
      const JinjaValue callee = evaluate(*call_expression.children[0], scope);
      JinjaArguments arguments = evaluate_arguments(call_expression.arguments, scope);
      arguments.named.emplace_back("caller", make_macro(s, scope));
      emit(text_of(call(callee, arguments)));
      break;
    }
    case StatementKind::FilterBlock: {
      JinjaText text;
      const Flow flow = capture(s.bodies[0], scope, text);
      if (flow != Flow::Normal) return flow;
      emit(text_of(apply_filters(*s.expressions[0], make_text(std::move(text)), scope)));
      break;
    }
    case StatementKind::Generation:
      return run(s.bodies[0], std::make_shared<Scope>(Scope{scope, {}}));
    case StatementKind::Break:
      return Flow::Break;
    case StatementKind::Continue:
      return Flow::Continue;
  }
  return Flow::Normal;
}

JinjaInterpreter::Flow JinjaInterpreter::run_for(const JinjaStatement& s, const JinjaValue& iterable,
                                                 const ScopePtr& scope, int recursion) {
  Depth depth(*this);
  std::vector<JinjaValue> items = iterate(iterable);
  if (s.expressions[1]) {
    std::vector<JinjaValue> kept;
    for (JinjaValue& item : items) {
      charge();
      auto inner = std::make_shared<Scope>(Scope{scope, {}});
      assign(*s.targets[0], item, inner);
      if (evaluate(*s.expressions[1], inner).truth()) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  auto loop = std::make_shared<LoopState>();
  loop->items = std::move(items);
  loop->recursion = recursion;
  loop->statement = &s;
  loop->outer = scope;
  const JinjaValue loop_value(Kind::Loop, loop);
  for (size_t i = 0; i < loop->items.size(); ++i) {
    charge();
    loop->index0 = i;
    auto inner = std::make_shared<Scope>(Scope{scope, {}});
    inner->variables.emplace_back("loop", loop_value);
    const JinjaValue item = loop->items[i];
    assign(*s.targets[0], item, inner);
    const Flow flow = run(s.bodies[0], inner);
    if (out_ == &output_ && !watched_.empty() && item.object()) {
      const auto at = watched_.find(item.object().get());
      if (at != watched_.end()) watched_ends_[at->second] = output_.size();
    }
    if (flow == Flow::Break) break;
  }
  if (loop->items.empty() && s.bodies.size() > 1) {
    return run(s.bodies[1], std::make_shared<Scope>(Scope{scope, {}}));
  }
  return Flow::Normal;
}

JinjaInterpreter::Flow JinjaInterpreter::capture(const JinjaBody& body, const ScopePtr& scope,
                                                 JinjaText& text) {
  JinjaText* const before = std::exchange(out_, &text);
  Flow flow;
  try {
    flow = run(body, std::make_shared<Scope>(Scope{scope, {}}));
  } catch (...) {
    out_ = before;
    throw;
  }
  out_ = before;
  return flow;
}

void JinjaInterpreter::assign(const JinjaExpression& target, const JinjaValue& value, const ScopePtr& scope) {
  if (target.kind == ExpressionKind::Name) return scope->set(target.name, value);
  if (target.kind == ExpressionKind::Attribute) {
    const JinjaValue object = evaluate(*target.children[0], scope);
    if (!object.is(Kind::Namespace)) throw Error("cannot assign attribute on non-namespace object");
    auto& attributes = object.object_as<JinjaNamespace>().attributes;
    for (auto& [name, old] : attributes) {
      if (name == target.name) {
        old = value;
        return;
      }
    }
    charge(1 + attributes.size());
    attributes.emplace_back(target.name, value);
    return;
  }
  const std::vector<JinjaValue> values = iterate(value);
  const size_t n = target.children.size();
  if (values.size() < n) {
    throw Error(fmt::format("not enough values to unpack (expected {}, got {})", n, values.size()));
  }
  if (values.size() > n) throw Error(fmt::format("too many values to unpack (expected {})", n));
  for (size_t i = 0; i < n; ++i) assign(*target.children[i], values[i], scope);
}

// ---- macros

JinjaValue JinjaInterpreter::make_macro(const JinjaStatement& s, const ScopePtr& scope) {
  auto macro = std::make_shared<JinjaCallable>();
  macro->name = s.kind == StatementKind::Macro ? s.name : "caller";
  if (captured_.back() != scope) captured_.push_back(scope);
  charge(4);
  macro->call = [&s, scope](JinjaInterpreter& self, JinjaArguments& arguments) {
    return self.call_macro(s, scope, arguments);
  };
  std::vector<JinjaValue> names;
  for (const std::string& name : s.signature.names) names.push_back(JinjaText(name, true));
  macro->attributes = {{"name", JinjaText(macro->name, true)},
                       {"arguments", JinjaValue::tuple(std::move(names))},
                       {"catch_kwargs", s.uses_kwargs},
                       {"catch_varargs", s.uses_varargs},
                       {"caller", s.uses_caller}};
  return JinjaValue(Kind::Callable, std::move(macro));
}

JinjaValue JinjaInterpreter::call_macro(const JinjaStatement& s, const ScopePtr& scope,
                                        JinjaArguments& arguments) {
  Depth depth(*this);
  const int line = line_;
  const std::string& name = s.kind == StatementKind::Macro ? s.name : "caller";
  const auto& names = s.signature.names;
  auto inner = std::make_shared<Scope>(Scope{scope, {}});

  bool explicit_caller = false;
  std::vector<bool> missing(names.size(), false);
  for (size_t i = 0; i < names.size(); ++i) {
    explicit_caller |= names[i] == "caller";
    if (i < arguments.positional.size()) {
      inner->set(names[i], arguments.positional[i]);
      continue;
    }
    const auto at = std::find_if(arguments.named.begin(), arguments.named.end(),
                                 [&](const auto& named) { return named.first == names[i]; });
    if (at != arguments.named.end()) {
      inner->set(names[i], at->second);
      arguments.named.erase(at);
    } else {
      missing[i] = true;
    }
  }
  if (s.uses_caller && !explicit_caller) {
    const auto at = std::find_if(arguments.named.begin(), arguments.named.end(),
                                 [](const auto& named) { return named.first == "caller"; });
    if (at != arguments.named.end()) {
      inner->set("caller", at->second);
      arguments.named.erase(at);
    } else {
      inner->set("caller", JinjaValue::undefined("No caller defined"));
    }
  }
  if (s.uses_kwargs) {
    std::vector<std::pair<JinjaValue, JinjaValue>> items;
    for (auto& [key, value] : arguments.named) items.emplace_back(JinjaText(key, true), value);
    inner->set("kwargs", JinjaValue::dict(std::move(items)));
  } else if (!arguments.named.empty()) {
    throw Error(fmt::format("macro '{}' takes no keyword argument '{}'", name, arguments.named[0].first));
  }
  if (s.uses_varargs) {
    const size_t used = std::min(names.size(), arguments.positional.size());
    inner->set("varargs", JinjaValue::tuple({arguments.positional.begin() + static_cast<ptrdiff_t>(used),
                                             arguments.positional.end()}));
  } else if (arguments.positional.size() > names.size()) {
    throw Error(fmt::format("macro '{}' takes not more than {} argument(s)", name, names.size()));
  }
  const size_t first_default = names.size() - s.signature.defaults.size();
  for (size_t i = 0; i < names.size(); ++i) {
    if (!missing[i]) continue;
    inner->set(names[i], i < first_default
                             ? JinjaValue::undefined(fmt::format("parameter '{}' was not provided", names[i]))
                             : evaluate(*s.signature.defaults[i - first_default], inner));
  }

  JinjaText text;
  JinjaText* const before = std::exchange(out_, &text);
  try {
    run(s.bodies[0], inner);
  } catch (...) {
    out_ = before;
    throw;
  }
  out_ = before;
  line_ = line;
  return make_text(std::move(text));
}

JinjaValue JinjaInterpreter::call(const JinjaValue& callee, JinjaArguments& arguments) {
  charge();
  Depth depth(*this);
  if (callee.is_undefined()) throw Error(callee.undefined_message());
  if (callee.is(Kind::Callable)) {
    const auto keep = callee.object();
    return callee.object_as<JinjaCallable>().call(*this, arguments);
  }
  if (callee.is(Kind::Loop)) {
    const auto keep = callee.object();
    auto& loop = callee.object_as<LoopState>();
    if (!loop.statement->recursive) {
      throw Error("the loop must have the 'recursive' marker to be called recursively");
    }
    JinjaBound bound("loop", arguments, {"iterable"});
    JinjaText text;
    JinjaText* const before = std::exchange(out_, &text);
    try {
      run_for(*loop.statement, bound.need(0), loop.outer, loop.recursion + 1);
    } catch (...) {
      out_ = before;
      throw;
    }
    out_ = before;
    return make_text(std::move(text));
  }
  throw Error(fmt::format("'{}' object is not callable", callee.type_name()));
}

JinjaValue JinjaInterpreter::make_namespace(std::vector<std::pair<std::string, JinjaValue>> attributes) {
  auto object = std::make_shared<JinjaNamespace>();
  object->attributes = std::move(attributes);
  charge(4);
  namespaces_.push_back(object);
  return JinjaValue(Kind::Namespace, std::move(object));
}

// ---- expressions

JinjaValue JinjaInterpreter::evaluate(const JinjaExpression& e, const ScopePtr& scope) {
  charge();
  Depth depth(*this);
  switch (e.kind) {
    case ExpressionKind::Constant:
      return e.constant;
    case ExpressionKind::Name:
      return lookup(e.name, scope);
    case ExpressionKind::List:
    case ExpressionKind::Tuple: {
      std::vector<JinjaValue> items;
      items.reserve(e.children.size());
      for (const auto& child : e.children) items.push_back(evaluate(*child, scope));
      return e.kind == ExpressionKind::List ? JinjaValue::list(std::move(items))
                                            : JinjaValue::tuple(std::move(items));
    }
    case ExpressionKind::Dict: {
      std::vector<std::pair<JinjaValue, JinjaValue>> items;
      for (size_t i = 0; i < e.children.size(); i += 2) {
        JinjaValue key = evaluate(*e.children[i], scope);
        items.emplace_back(std::move(key), evaluate(*e.children[i + 1], scope));
      }
      return JinjaValue::dict(std::move(items));
    }
    case ExpressionKind::Attribute:
      return attribute(evaluate(*e.children[0], scope), e.name);
    case ExpressionKind::Item: {
      const JinjaValue object = evaluate(*e.children[0], scope);
      if (e.children[1]->kind == ExpressionKind::Slice) return slice(object, *e.children[1], scope);
      return item(object, evaluate(*e.children[1], scope));
    }
    case ExpressionKind::Slice:
      throw Error("a slice outside a subscript");
    case ExpressionKind::Call: {
      const JinjaValue callee = evaluate(*e.children[0], scope);
      JinjaArguments arguments = evaluate_arguments(e.arguments, scope);
      line_ = e.line;
      return call(callee, arguments);
    }
    case ExpressionKind::Filter:
      return apply_filter(e, evaluate(*e.children[0], scope), scope);
    case ExpressionKind::Test: {
      const JinjaValue value = evaluate(*e.children[0], scope);
      JinjaArguments arguments = evaluate_arguments(e.arguments, scope);
      return test(e.name, value, arguments);
    }
    case ExpressionKind::Not:
      return !evaluate(*e.children[0], scope).truth();
    case ExpressionKind::Negative:
    case ExpressionKind::Positive: {
      const JinjaValue value = evaluate(*e.children[0], scope);
      if (value.is_undefined()) throw Error(value.undefined_message());
      if (!value.is_number()) {
        throw Error(fmt::format("bad operand type for unary {}: '{}'",
                                e.kind == ExpressionKind::Negative ? '-' : '+', value.type_name()));
      }
      if (value.is(Kind::Float))
        return e.kind == ExpressionKind::Negative ? -value.as_float() : value.as_float();
      return binary(e.kind == ExpressionKind::Negative ? "-" : "+", 0, value);
    }
    case ExpressionKind::Binary: {
      const JinjaValue left = evaluate(*e.children[0], scope);
      return binary(e.name, left, evaluate(*e.children[1], scope));
    }
    case ExpressionKind::Concat:
      return concat(e, scope);
    case ExpressionKind::Compare:
      return compare(e, scope);
    case ExpressionKind::And: {
      JinjaValue left = evaluate(*e.children[0], scope);
      return left.truth() ? evaluate(*e.children[1], scope) : left;
    }
    case ExpressionKind::Or: {
      JinjaValue left = evaluate(*e.children[0], scope);
      return left.truth() ? left : evaluate(*e.children[1], scope);
    }
    case ExpressionKind::Conditional:
      if (evaluate(*e.children[0], scope).truth()) return evaluate(*e.children[1], scope);
      if (e.children[2]) return evaluate(*e.children[2], scope);
      return JinjaValue::undefined(
          "the inline if-expression evaluated to false and no else section was defined");
  }
  return JinjaValue();
}

JinjaValue JinjaInterpreter::lookup(const std::string& name, const ScopePtr& scope) {
  for (const Scope* s = scope.get(); s != nullptr; s = s->parent.get()) {
    for (const auto& [key, value] : s->variables) {
      if (key == name) return value;
    }
  }
  JinjaValue global = find_global(name);
  return global.is_undefined() ? JinjaValue::undefined(fmt::format("'{}' is undefined", name)) : global;
}

JinjaValue JinjaInterpreter::concat(const JinjaExpression& e, const ScopePtr& scope) {
  JinjaText text;
  for (const auto& child : e.children) {
    text.append(text_of(evaluate(*child, scope)));
    if (text.size() > limits_.text_bytes) break;  // make_text refuses it
  }
  return make_text(std::move(text));
}

JinjaValue JinjaInterpreter::compare(const JinjaExpression& e, const ScopePtr& scope) {
  JinjaValue left = evaluate(*e.children[0], scope);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    JinjaValue right = evaluate(*e.children[i + 1], scope);
    charge((left.weight() + right.weight()) / 4);
    const std::string& op = e.operators[i];
    bool holds;
    if (op == "==")
      holds = equal(left, right);
    else if (op == "!=")
      holds = !equal(left, right);
    else if (op == "<")
      holds = less(left, right);
    else if (op == ">")
      holds = less(right, left);
    else if (op == "<=")
      holds = less(left, right) || equal(left, right);
    else if (op == ">=")
      holds = less(right, left) || equal(left, right);
    else if (op == "in")
      holds = contains(right, left);
    else
      holds = !contains(right, left);
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

JinjaValue JinjaInterpreter::slice(const JinjaValue& object, const JinjaExpression& e,
                                   const ScopePtr& scope) {
  JinjaValue bounds[3];
  for (int i = 0; i < 3; ++i) {
    bounds[i] = e.children[i] ? evaluate(*e.children[i], scope) : JinjaValue::none();
  }
  if (object.is_undefined()) throw Error(object.undefined_message());
  if (!object.is_string() && !object.is_sequence()) {
    throw Error(fmt::format("'{}' object is not subscriptable", object.type_name()));
  }
  for (const JinjaValue& b : bounds) {
    if (!b.is_none() && !b.is(Kind::Int) && !b.is(Kind::Bool))
      throw Error("slice indices must be integers or None");
  }
  const std::vector<size_t> offsets =
      object.is_string() ? char_offsets(object.as_text().view()) : std::vector<size_t>();
  const int64_t n = static_cast<int64_t>(object.is_string() ? offsets.size() - 1 : object.items().size());
  charge(static_cast<uint64_t>(n) / 16);
  const int64_t step = bounds[2].is_none() ? 1 : bounds[2].as_int();
  if (step == 0) throw Error("slice step cannot be zero");
  const auto clip = [&](const JinjaValue& b, int64_t otherwise) {
    if (b.is_none()) return otherwise;
    int64_t at = b.as_int();
    if (at < 0) at = at < -n ? -1 : at + n;
    const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    return b.as_int() < 0 && at < 0 ? low : std::clamp(at, low, high);
  };
  const int64_t from = clip(bounds[0], step < 0 ? n - 1 : 0);
  const int64_t to = clip(bounds[1], step < 0 ? -1 : n);
  if (object.is_string() && step == 1) {
    const size_t begin = offsets[static_cast<size_t>(from)];
    const size_t end = offsets[static_cast<size_t>(std::max(from, to))];
    return make_text(object.as_text().slice(begin, end - begin));
  }
  std::vector<JinjaValue> items;
  JinjaText text;
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    charge();
    if (object.is_string())
      text.append(object.as_text(), offsets[static_cast<size_t>(i)],
                  offsets[static_cast<size_t>(i) + 1] - offsets[static_cast<size_t>(i)]);
    else
      items.push_back(object.items()[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (object.is_string()) return make_text(std::move(text));
  return object.is(Kind::List) ? JinjaValue::list(std::move(items)) : JinjaValue::tuple(std::move(items));
}

JinjaArguments JinjaInterpreter::evaluate_arguments(const JinjaCallArguments& arguments,
                                                    const ScopePtr& scope) {
  JinjaArguments out;
  for (const auto& e : arguments.positional) out.positional.push_back(evaluate(*e, scope));
  for (const auto& [name, e] : arguments.named) out.named.emplace_back(name, evaluate(*e, scope));
  if (arguments.star) {
    for (JinjaValue& v : iterate(evaluate(*arguments.star, scope))) out.positional.push_back(std::move(v));
  }
  if (arguments.double_star) {
    const JinjaValue names = evaluate(*arguments.double_star, scope);
    if (!names.is(Kind::Dict))
      throw Error(fmt::format("argument after ** must be a mapping, not {}", names.type_name()));
    for (const auto& [key, value] : names.object_as<JinjaDict>().items) {
      if (!key.is_string()) throw Error("keywords must be strings");
      out.named.emplace_back(key.as_text().view(), value);
    }
    charge(out.named.size());
  }
  return out;
}

JinjaValue JinjaInterpreter::apply_filter(const JinjaExpression& e, const JinjaValue& value,
                                          const ScopePtr& scope) {
  JinjaArguments arguments = evaluate_arguments(e.arguments, scope);
  return filter(e.name, value, arguments);
}

JinjaValue JinjaInterpreter::apply_filters(const JinjaExpression& e, const JinjaValue& value,
                                           const ScopePtr& scope) {
  return apply_filter(e, e.children[0] ? apply_filters(*e.children[0], value, scope) : value, scope);
}

JinjaValue JinjaInterpreter::filter(std::string_view name, const JinjaValue& value,
                                    JinjaArguments& arguments) {
  const JinjaFilter filter = find_filter(name);
  if (filter == nullptr) throw Error(fmt::format("no filter named '{}'", name));
  charge(1 + value.weight() / 8);
  return filter(*this, value, arguments);
}

bool JinjaInterpreter::test(std::string_view name, const JinjaValue& value, JinjaArguments& arguments) {
  const JinjaTest test = find_test(name);
  if (test == nullptr) throw Error(fmt::format("no test named '{}'", name));
  charge();
  return test(*this, value, arguments);
}

// ---- attributes and items

namespace {

std::string missing_attribute(const JinjaValue& object, std::string_view name) {
  return fmt::format("'{} object' has no attribute '{}'", object.type_name(), name);
}

}  // namespace

JinjaValue JinjaInterpreter::attribute(const JinjaValue& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::Undefined:
      throw Error(object.undefined_message());
    case Kind::Loop: {
      JinjaValue value = loop_attribute(object, name);
      return value.is_undefined() && !value.object() ? JinjaValue::undefined(missing_attribute(object, name))
                                                     : value;
    }
    case Kind::Namespace:
      for (const auto& [key, value] : object.object_as<JinjaNamespace>().attributes) {
        if (key == name) return value;
      }
      return JinjaValue::undefined(missing_attribute(object, name));
    case Kind::Callable:
      for (const auto& [key, value] : object.object_as<JinjaCallable>().attributes) {
        if (key == name) return value;
      }
      return JinjaValue::undefined(missing_attribute(object, name));
    default: {
      JinjaValue method = find_method(object, name);
      if (!method.is_undefined() || method.object()) return method;
      if (object.is(Kind::Dict)) {
        if (const JinjaValue* value = object.object_as<JinjaDict>().find(name)) return *value;
      }
      if (object.is(Kind::Tuple) && object.object_as<JinjaSequence>().grouped) {
        if (name == "grouper") return object.items()[0];
        if (name == "list") return object.items()[1];
      }
      return JinjaValue::undefined(missing_attribute(object, name));
    }
  }
}

JinjaValue JinjaInterpreter::item(const JinjaValue& object, const JinjaValue& key) {
  if (object.is_undefined()) throw Error(object.undefined_message());
  if (object.is(Kind::Dict)) {
    if (!key.is_sequence() && !key.is(Kind::Dict)) {
      if (const JinjaValue* value = object.object_as<JinjaDict>().find(key)) return *value;
    } else if (key.is(Kind::Tuple)) {
      charge(key.weight());
      if (const JinjaValue* value = object.object_as<JinjaDict>().find(key)) return *value;
    }
  } else if ((object.is_sequence() || object.is_string()) && (key.is(Kind::Int) || key.is(Kind::Bool))) {
    const std::vector<size_t> offsets =
        object.is_string() ? char_offsets(object.as_text().view()) : std::vector<size_t>();
    const int64_t n = static_cast<int64_t>(object.is_string() ? offsets.size() - 1 : object.items().size());
    charge(static_cast<uint64_t>(offsets.size()) / 16);
    int64_t i = key.as_int();
    if (i < 0) i += n;
    if (i >= 0 && i < n) {
      const size_t at = static_cast<size_t>(i);
      return object.is_string()
                 ? make_text(object.as_text().slice(offsets[at], offsets[at + 1] - offsets[at]))
                 : object.items()[at];
    }
  }
  if (key.is_string()) return attribute(object, key.as_text().view());
  return JinjaValue::undefined(
      fmt::format("{} object has no element {}", object.type_name(), to_repr(key, 1 << 16).view()));
}

JinjaValue JinjaInterpreter::loop_attribute(const JinjaValue& value, std::string_view name) {
  auto& loop = value.object_as<LoopState>();
  const int64_t n = static_cast<int64_t>(loop.items.size()), i = static_cast<int64_t>(loop.index0);
  if (name == "index") return i + 1;
  if (name == "index0") return i;
  if (name == "revindex") return n - i;
  if (name == "revindex0") return n - i - 1;
  if (name == "first") return i == 0;
  if (name == "last") return i + 1 == n;
  if (name == "length") return n;
  if (name == "depth") return loop.recursion + 1;
  if (name == "depth0") return loop.recursion;
  if (name == "previtem")
    return i > 0 ? loop.items[loop.index0 - 1] : JinjaValue::undefined("there is no previous item");
  if (name == "nextitem")
    return i + 1 < n ? loop.items[loop.index0 + 1] : JinjaValue::undefined("there is no next item");
  if (name != "cycle" && name != "changed") return JinjaValue();
  auto method = std::make_shared<JinjaCallable>();
  method->name = name;
  const auto keep = value.object();
  if (name == "cycle") {
    method->call = [keep](JinjaInterpreter&, JinjaArguments& arguments) {
      if (arguments.positional.empty()) throw Error("no items for cycling given");
      return arguments.positional[static_cast<LoopState&>(*keep).index0 % arguments.positional.size()];
    };
  } else {
    method->call = [keep](JinjaInterpreter& self, JinjaArguments& arguments) {
      auto& state = static_cast<LoopState&>(*keep);
      JinjaValue now = JinjaValue::tuple(arguments.positional);
      self.charge(now.weight());
      const bool changed = !state.changed_called || !equal(state.changed_value, now);
      if (!state.changed_called) self.changed_loops_.push_back(keep);
      state.changed_called = true;
      state.changed_value = std::move(now);
      return JinjaValue(changed);
    };
  }
  return JinjaValue(Kind::Callable, std::move(method));
}

// ---- arguments

JinjaBound::JinjaBound(std::string_view function, const JinjaArguments& arguments,
                       std::initializer_list<std::string_view> names)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names_.size()) {
    throw Error(fmt::format("{}() takes at most {} argument(s), {} given", function, names_.size(),
                            arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto at = std::find(names_.begin(), names_.end(), name);
    if (at == names_.end())
      throw Error(fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    const JinjaValue*& slot = values_[static_cast<size_t>(at - names_.begin())];
    if (slot != nullptr)
      throw Error(fmt::format("{}() got multiple values for argument '{}'", function, name));
    slot = &value;
  }
}

const JinjaValue& JinjaBound::need(size_t i) const {
  if (values_[i] == nullptr) {
    throw Error(fmt::format("{}() missing 1 required positional argument: '{}'", function_, names_[i]));
  }
  return *values_[i];
}

int64_t JinjaBound::integer(size_t i, int64_t otherwise) const {
  if (values_[i] == nullptr || values_[i]->is_none()) return otherwise;
  if (!values_[i]->is(Kind::Int) && !values_[i]->is(Kind::Bool)) {
    throw Error(fmt::format("{}(): argument '{}' must be int, not {}", function_, names_[i],
                            values_[i]->type_name()));
  }
  return values_[i]->as_int();
}

const JinjaText& JinjaBound::text(size_t i) const {
  const JinjaValue& value = need(i);
  if (value.is_undefined()) throw Error(value.undefined_message());
  if (!value.is_string()) {
    throw Error(
        fmt::format("{}(): argument '{}' must be str, not {}", function_, names_[i], value.type_name()));
  }
  return value.as_text();
}

}  // namespace quern
