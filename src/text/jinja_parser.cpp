#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "text/jinja_lexer.h"

namespace quern {

namespace {

using Kind = JinjaExpression::Kind;
using Statement = JinjaStatement::Kind;
using Token = JinjaToken::Kind;

constexpr int kMaxExpressionDepth = 200;
constexpr int kMaxBlockDepth = 100;
constexpr size_t kMaxTokens = 1'000'000;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize_template(source)) {
    if (tokens_.size() > kMaxTokens) template_error(1, fmt::format("more than {} tokens", kMaxTokens));
  }

  JinjaBody run() {
    JinjaBody body = parse_body({});
    return body;
  }

 private:
  // ---- tokens

  const JinjaToken& current() const { return tokens_[at_]; }
  const JinjaToken& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  [[noreturn]] void fail(const std::string& what) const { template_error(line(), what); }

  std::string describe() const {
    switch (current().kind) {
      case Token::End:
        return "end of template";
      case Token::BlockEnd:
        return "end of statement block";
      case Token::VariableEnd:
        return "end of print statement";
      case Token::Integer:
      case Token::Float:
        return "a number";
      case Token::String:
        return "a string";
      default:
        return "'" + current().text + "'";
    }
  }

  void next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool skip_name(std::string_view s) {
    if (!current().is_name(s)) return false;
    next();
    return true;
  }
  bool skip_operator(std::string_view s) {
    if (!current().is_operator(s)) return false;
    next();
    return true;
  }
  void expect_operator(std::string_view s) {
    if (!skip_operator(s)) fail(fmt::format("expected '{}', found {}", s, describe()));
  }
  void expect_name(std::string_view s) {
    if (!skip_name(s)) fail(fmt::format("expected '{}', found {}", s, describe()));
  }
  std::string take_name() {
    if (!current().is(Token::Name)) fail("expected a name, found " + describe());
    std::string name = current().text;
    if (name[0] >= '0' && name[0] <= '9') fail("expected a name, found " + describe());
    next();
    return name;
  }
  void expect_block_end() {
    if (!current().is(Token::BlockEnd)) fail("expected end of statement block, found " + describe());
    next();
  }

  // ---- statements

  // Statements up to {% one of `ends`, which stays the current token (its {% is taken).
  JinjaBody parse_body(std::initializer_list<std::string_view> ends) {
    if (++block_depth_ > kMaxBlockDepth) fail(fmt::format("blocks nest deeper than {}", kMaxBlockDepth));
    JinjaBody body;
    while (true) {
      const JinjaToken& token = current();
      if (token.is(Token::Data)) {
        auto& text = add(body, Statement::Text);
        text.text = JinjaText(token.text, true);
        next();
      } else if (token.is(Token::VariableBegin)) {
        next();
        auto& output = add(body, Statement::Output);
        output.expressions.push_back(parse_tuple());
        if (!current().is(Token::VariableEnd)) fail("expected end of print statement, found " + describe());
        next();
      } else if (token.is(Token::BlockBegin)) {
        next();
        if (std::any_of(ends.begin(), ends.end(), [&](auto e) { return current().is_name(e); })) break;
        parse_statement(body);
        expect_block_end();
      } else if (token.is(Token::End)) {
        if (ends.size() > 0)
          fail(fmt::format("unexpected end of template, expected '{}'", *(ends.end() - 1)));
        break;
      } else {
        fail("unexpected " + describe());
      }
    }
    --block_depth_;
    return body;
  }

  JinjaBody parse_block(std::initializer_list<std::string_view> ends) {
    skip_operator(":");
    expect_block_end();
    return parse_body(ends);
  }

  JinjaStatement& add(JinjaBody& body, Statement kind) {
    body.push_back(std::make_unique<JinjaStatement>());
    body.back()->kind = kind;
    body.back()->line = line();
    return *body.back();
  }

  void parse_statement(JinjaBody& body) {
    if (!current().is(Token::Name)) fail("tag name expected, found " + describe());
    const std::string tag = current().text;
    if (tag == "if") return parse_if(body);
    if (tag == "for") return parse_for(body);
    if (tag == "set") return parse_set(body);
    if (tag == "with") return parse_with(body);
    if (tag == "macro") return parse_macro(body);
    if (tag == "call") return parse_call_block(body);
    if (tag == "filter") {
      auto& statement = add(body, Statement::FilterBlock);
      next();
      statement.expressions.push_back(parse_filters(nullptr, true));
      statement.bodies.push_back(parse_block({"endfilter"}));
      next();
      return;
    }
    if (tag == "generation") {
      auto& statement = add(body, Statement::Generation);
      next();
      statement.bodies.push_back(parse_block({"endgeneration"}));
      next();
      return;
    }
    if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) fail(fmt::format("'{}' outside a loop", tag));
      add(body, tag == "break" ? Statement::Break : Statement::Continue);
      next();
      return;
    }
    if (tag == "print") {
      next();
      bool first = true;
      while (!current().is(Token::BlockEnd)) {
        if (!first) expect_operator(",");
        first = false;
        auto& output = add(body, Statement::Output);
        output.expressions.push_back(parse_expression());
      }
      return;
    }
    for (std::string_view outside : {"include", "import", "from", "extends", "block", "autoescape"}) {
      if (tag == outside) fail(fmt::format("'{}' is not supported: a chat template stands alone", tag));
    }
    fail(fmt::format("unknown tag '{}'", tag));
  }

  void parse_if(JinjaBody& body) {
    auto& statement = add(body, Statement::If);
    next();
    while (true) {
      statement.expressions.push_back(parse_tuple(false));
      statement.bodies.push_back(parse_block({"elif", "else", "endif"}));
      if (skip_name("elif")) continue;
      if (skip_name("else")) {
        statement.bodies.push_back(parse_block({"endif"}));
      }
      next();
      return;
    }
  }

  void parse_for(JinjaBody& body) {
    auto& statement = add(body, Statement::For);
    next();
    statement.targets.push_back(parse_target(false));
    expect_name("in");
    statement.expressions.push_back(parse_tuple(false, "recursive"));
    statement.expressions.push_back(skip_name("if") ? parse_expression() : nullptr);
    statement.recursive = skip_name("recursive");
    ++loop_depth_;
    statement.bodies.push_back(parse_block({"endfor", "else"}));
    --loop_depth_;
    if (skip_name("else")) statement.bodies.push_back(parse_block({"endfor"}));
    next();
  }

  void parse_set(JinjaBody& body) {
    auto& statement = add(body, Statement::Set);
    next();
    statement.targets.push_back(parse_target(true));
    if (skip_operator("=")) {
      statement.expressions.push_back(parse_tuple());
      return;
    }
    statement.kind = Statement::SetBlock;
    statement.expressions.push_back(parse_filters(nullptr, false));
    statement.bodies.push_back(parse_block({"endset"}));
    next();
  }

  void parse_with(JinjaBody& body) {
    auto& statement = add(body, Statement::With);
    next();
    while (!current().is(Token::BlockEnd)) {
      if (!statement.targets.empty()) expect_operator(",");
      statement.targets.push_back(parse_target(false));
      expect_operator("=");
      statement.expressions.push_back(parse_expression());
    }
    statement.bodies.push_back(parse_block({"endwith"}));
    next();
  }

  void parse_macro(JinjaBody& body) {
    auto& statement = add(body, Statement::Macro);
    next();
    statement.name = take_name();
    parse_signature(statement);
    parse_function_body(statement, {"endmacro"});
  }

  void parse_call_block(JinjaBody& body) {
    auto& statement = add(body, Statement::Call);
    next();
    if (current().is_operator("(")) parse_signature(statement);
    statement.expressions.push_back(parse_expression());
    if (statement.expressions[0]->kind != Kind::Call) fail("expected a call");
    parse_function_body(statement, {"endcall"});
  }

  // A macro's body: a loop around it is not its loop. Notes which of the special names it reads.
  void parse_function_body(JinjaStatement& statement, std::initializer_list<std::string_view> ends) {
    const int loops = std::exchange(loop_depth_, 0);
    const size_t begin = at_;
    statement.bodies.push_back(parse_block(ends));
    for (size_t i = begin; i < at_; ++i) {
      if (!tokens_[i].is(Token::Name) || (i > 0 && tokens_[i - 1].is_operator("."))) continue;
      statement.uses_caller |= tokens_[i].text == "caller";
      statement.uses_varargs |= tokens_[i].text == "varargs";
      statement.uses_kwargs |= tokens_[i].text == "kwargs";
    }
    loop_depth_ = loops;
    next();
  }

  void parse_signature(JinjaStatement& statement) {
    expect_operator("(");
    JinjaSignature& signature = statement.signature;
    while (!current().is_operator(")")) {
      if (!signature.names.empty()) expect_operator(",");
      signature.names.push_back(take_name());
      if (skip_operator("=")) {
        signature.defaults.push_back(parse_expression());
      } else if (!signature.defaults.empty()) {
        fail("non-default argument follows default argument");
      }
    }
    next();
  }

  JinjaExpressionPtr parse_target(bool with_namespace) {
    Nest nest(*this);
    if (with_namespace && look().is_operator(".")) {
      auto object = make(Kind::Name);
      object->name = take_name();
      next();
      auto target = make(Kind::Attribute);
      target->name = take_name();
      adopt(*target, std::move(object));
      return target;
    }
    const int at = line();
    std::vector<JinjaExpressionPtr> names;
    bool is_tuple = false;
    while (true) {
      if (current().is_operator(")") || current().is_operator("=") || current().is_name("in") ||
          current().is(Token::BlockEnd)) {
        break;
      }
      JinjaExpressionPtr name;
      if (skip_operator("(")) {
        name = parse_target(false);
        expect_operator(")");
      } else {
        name = make(Kind::Name);
        name->name = take_name();
        for (std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
          if (name->name == constant) fail(fmt::format("can't assign to '{}'", constant));
        }
      }
      names.push_back(std::move(name));
      if (!skip_operator(",")) break;
      is_tuple = true;
    }
    if (names.empty()) fail("expected a name, found " + describe());
    if (!is_tuple) return std::move(names[0]);
    auto tuple = make(Kind::Tuple);
    tuple->line = at;
    for (auto& name : names) adopt(*tuple, std::move(name));
    return tuple;
  }

  // ---- expressions

  JinjaExpressionPtr make(Kind kind) const {
    auto e = std::make_unique<JinjaExpression>();
    e->kind = kind;
    e->line = line();
    return e;
  }

  void note_depth(JinjaExpression& parent, const JinjaExpressionPtr& child) const {
    if (!child) return;
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxExpressionDepth) {
      fail(fmt::format("an expression nests deeper than {}", kMaxExpressionDepth));
    }
  }
  void adopt(JinjaExpression& parent, JinjaExpressionPtr child) const {
    note_depth(parent, child);
    parent.children.push_back(std::move(child));
  }

  // Counts the recursion of the parser itself; the tree's depth is checked in adopt.
  struct Nest {
    explicit Nest(Parser& p) : parser(p) {
      if (++parser.nest_ > kMaxExpressionDepth) {
        parser.fail(fmt::format("an expression nests deeper than {}", kMaxExpressionDepth));
      }
    }
    ~Nest() { --parser.nest_; }
    Parser& parser;
  };

  JinjaExpressionPtr parse_expression(bool with_conditional = true) {
    Nest nest(*this);
    if (!with_conditional) return parse_or();
    JinjaExpressionPtr value = parse_or();
    while (current().is_name("if")) {
      auto e = make(Kind::Conditional);
      next();
      auto test = parse_or();
      adopt(*e, std::move(test));
      adopt(*e, std::move(value));
      adopt(*e, skip_name("else") ? parse_expression() : nullptr);
      value = std::move(e);
    }
    return value;
  }

  JinjaExpressionPtr two(Kind kind, std::string name, JinjaExpressionPtr left,
                         JinjaExpressionPtr right) const {
    auto e = make(kind);
    e->line = left->line;
    e->name = std::move(name);
    adopt(*e, std::move(left));
    adopt(*e, std::move(right));
    return e;
  }

  JinjaExpressionPtr parse_or() {
    auto left = parse_and();
    while (skip_name("or")) left = two(Kind::Or, "", std::move(left), parse_and());
    return left;
  }
  JinjaExpressionPtr parse_and() {
    auto left = parse_not();
    while (skip_name("and")) left = two(Kind::And, "", std::move(left), parse_not());
    return left;
  }
  JinjaExpressionPtr parse_not() {
    Nest nest(*this);
    if (!current().is_name("not")) return parse_compare();
    auto e = make(Kind::Not);
    next();
    adopt(*e, parse_not());
    return e;
  }

  JinjaExpressionPtr parse_compare() {
    auto first = parse_sum();
    JinjaExpressionPtr e;
    while (true) {
      std::string op;
      for (std::string_view candidate : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (current().is_operator(candidate)) op = candidate;
      }
      if (current().is_name("in")) op = "in";
      if (current().is_name("not") && look().is_name("in")) {
        op = "not in";
        next();
      }
      if (op.empty()) break;
      next();
      if (!e) {
        e = make(Kind::Compare);
        adopt(*e, std::move(first));
      }
      e->operators.push_back(op);
      adopt(*e, parse_sum());
    }
    return e ? std::move(e) : std::move(first);
  }

  JinjaExpressionPtr parse_sum() {
    auto left = parse_concat();
    while (current().is_operator("+") || current().is_operator("-")) {
      std::string op = current().text;
      next();
      left = two(Kind::Binary, op, std::move(left), parse_concat());
    }
    return left;
  }
  JinjaExpressionPtr parse_concat() {
    auto first = parse_product();
    if (!current().is_operator("~")) return first;
    auto e = make(Kind::Concat);
    adopt(*e, std::move(first));
    while (skip_operator("~")) adopt(*e, parse_product());
    return e;
  }
  JinjaExpressionPtr parse_product() {
    auto left = parse_power();
    while (current().is_operator("*") || current().is_operator("/") || current().is_operator("//") ||
           current().is_operator("%")) {
      std::string op = current().text;
      next();
      left = two(Kind::Binary, op, std::move(left), parse_power());
    }
    return left;
  }
  JinjaExpressionPtr parse_power() {
    auto left = parse_unary(true);
    while (skip_operator("**")) left = two(Kind::Binary, "**", std::move(left), parse_unary(true));
    return left;
  }

  JinjaExpressionPtr parse_unary(bool with_filter) {
    Nest nest(*this);
    JinjaExpressionPtr e;
    if (current().is_operator("-") || current().is_operator("+")) {
      e = make(current().text == "-" ? Kind::Negative : Kind::Positive);
      next();
      adopt(*e, parse_unary(false));
    } else {
      e = parse_primary();
    }
    e = parse_postfix(std::move(e));
    return with_filter ? parse_filter_expression(std::move(e)) : std::move(e);
  }

  JinjaExpressionPtr parse_primary() {
    const JinjaToken& token = current();
    if (token.is(Token::Name)) {
      auto e = make(Kind::Constant);
      if (token.text == "true" || token.text == "True") {
        e->constant = true;
      } else if (token.text == "false" || token.text == "False") {
        e->constant = false;
      } else if (token.text == "none" || token.text == "None") {
        e->constant = JinjaValue::none();
      } else {
        e->kind = Kind::Name;
        e->name = take_name();
        return e;
      }
      next();
      return e;
    }
    if (token.is(Token::String)) {
      auto e = make(Kind::Constant);
      std::string text;
      for (; current().is(Token::String); next()) text += current().text;
      e->constant = JinjaText(std::move(text), true);
      return e;
    }
    if (token.is(Token::Integer) || token.is(Token::Float)) {
      auto e = make(Kind::Constant);
      e->constant = token.number;
      next();
      return e;
    }
    if (skip_operator("(")) {
      auto e = parse_tuple(true, "", true);
      expect_operator(")");
      return e;
    }
    if (token.is_operator("[")) {
      auto e = make(Kind::List);
      next();
      while (!current().is_operator("]")) {
        if (!e->children.empty()) expect_operator(",");
        if (current().is_operator("]")) break;
        adopt(*e, parse_expression());
      }
      expect_operator("]");
      return e;
    }
    if (token.is_operator("{")) {
      auto e = make(Kind::Dict);
      next();
      while (!current().is_operator("}")) {
        if (!e->children.empty()) expect_operator(",");
        if (current().is_operator("}")) break;
        adopt(*e, parse_expression());
        expect_operator(":");
        adopt(*e, parse_expression());
      }
      expect_operator("}");
      return e;
    }
    fail("unexpected " + describe());
  }

  JinjaExpressionPtr parse_tuple(bool with_conditional = true, std::string_view end_name = "",
                                 bool brackets = false) {
    std::vector<JinjaExpressionPtr> items;
    bool is_tuple = false;
    const int at = line();
    while (true) {
      if (current().is(Token::VariableEnd) || current().is(Token::BlockEnd) || current().is_operator(")") ||
          (!end_name.empty() && current().is_name(end_name))) {
        break;
      }
      items.push_back(parse_expression(with_conditional));
      if (!skip_operator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return std::move(items[0]);
    if (!is_tuple && !brackets) fail("expected an expression, found " + describe());
    auto tuple = make(Kind::Tuple);
    tuple->line = at;
    for (auto& item : items) adopt(*tuple, std::move(item));
    return tuple;
  }

  JinjaExpressionPtr parse_postfix(JinjaExpressionPtr e) {
    while (true) {
      if (current().is_operator(".")) {
        next();
        if (current().is(Token::Integer)) {
          auto index = make(Kind::Constant);
          index->constant = current().number;
          next();
          e = two(Kind::Item, "", std::move(e), std::move(index));
        } else {
          auto attribute = make(Kind::Attribute);
          attribute->name = take_name();
          adopt(*attribute, std::move(e));
          e = std::move(attribute);
        }
      } else if (current().is_operator("[")) {
        next();
        e = two(Kind::Item, "", std::move(e), parse_subscript());
        expect_operator("]");
      } else if (current().is_operator("(")) {
        e = parse_call(std::move(e));
      } else {
        return e;
      }
    }
  }

  JinjaExpressionPtr parse_subscript() {
    std::vector<JinjaExpressionPtr> items;
    do {
      if (current().is_operator("]") && !items.empty()) fail("unexpected ']'");
      items.push_back(parse_slice());
    } while (skip_operator(","));
    if (items.size() == 1) return std::move(items[0]);
    auto tuple = make(Kind::Tuple);
    for (auto& item : items) {
      if (item->kind == Kind::Slice) fail("a slice inside a tuple subscript is not supported");
      adopt(*tuple, std::move(item));
    }
    return tuple;
  }

  JinjaExpressionPtr parse_slice() {
    JinjaExpressionPtr from;
    if (!current().is_operator(":")) {
      from = parse_expression();
      if (!current().is_operator(":")) return from;
    }
    next();
    const auto part = [&]() -> JinjaExpressionPtr {
      if (current().is_operator("]") || current().is_operator(",") || current().is_operator(":"))
        return nullptr;
      return parse_expression();
    };
    auto e = make(Kind::Slice);
    adopt(*e, std::move(from));
    adopt(*e, part());
    adopt(*e, skip_operator(":") ? part() : nullptr);
    return e;
  }

  JinjaExpressionPtr parse_call(JinjaExpressionPtr callee) {
    auto e = make(Kind::Call);
    adopt(*e, std::move(callee));
    parse_arguments(*e);
    return e;
  }

  void parse_arguments(JinjaExpression& e) {
    expect_operator("(");
    JinjaCallArguments& arguments = e.arguments;
    const auto ensure = [&](bool valid) {
      if (!valid) fail("invalid syntax for function call expression");
    };
    bool first = true;
    while (!current().is_operator(")")) {
      if (!first) {
        expect_operator(",");
        if (current().is_operator(")")) break;
      }
      first = false;
      if (skip_operator("*")) {
        ensure(!arguments.star && !arguments.double_star);
        arguments.star = parse_expression();
        note_depth(e, arguments.star);
      } else if (skip_operator("**")) {
        ensure(!arguments.double_star);
        arguments.double_star = parse_expression();
        note_depth(e, arguments.double_star);
      } else if (current().is(Token::Name) && look().is_operator("=")) {
        ensure(!arguments.double_star);
        std::string name = take_name();
        next();
        arguments.named.emplace_back(std::move(name), parse_expression());
        note_depth(e, arguments.named.back().second);
      } else {
        ensure(!arguments.star && !arguments.double_star && arguments.named.empty());
        arguments.positional.push_back(parse_expression());
        note_depth(e, arguments.positional.back());
      }
    }
    expect_operator(")");
  }

  JinjaExpressionPtr parse_filter_expression(JinjaExpressionPtr e) {
    while (true) {
      if (current().is_operator("|"))
        e = parse_filters(std::move(e), false);
      else if (current().is_name("is"))
        e = parse_test(std::move(e));
      else if (current().is_operator("("))
        e = parse_call(std::move(e));
      else
        return e;
    }
  }

  // `| name(…) | name …`; inline_first: the first one has no bar.
  JinjaExpressionPtr parse_filters(JinjaExpressionPtr e, bool inline_first) {
    while (inline_first || current().is_operator("|")) {
      if (!inline_first) next();
      inline_first = false;
      auto filter = make(Kind::Filter);
      filter->name = take_dotted_name();
      adopt(*filter, std::move(e));
      if (current().is_operator("(")) parse_arguments(*filter);
      e = std::move(filter);
    }
    return e;
  }

  std::string take_dotted_name() {
    std::string name = take_name();
    while (skip_operator(".")) name += "." + take_name();
    return name;
  }

  JinjaExpressionPtr parse_test(JinjaExpressionPtr e) {
    next();
    const bool negated = skip_name("not");
    auto test = make(Kind::Test);
    test->name = take_dotted_name();
    adopt(*test, std::move(e));
    const JinjaToken& token = current();
    const bool starts_argument = token.is(Token::Name) || token.is(Token::String) ||
                                 token.is(Token::Integer) || token.is(Token::Float) ||
                                 token.is_operator("[") || token.is_operator("{");
    if (token.is_operator("(")) {
      parse_arguments(*test);
    } else if (starts_argument && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
      if (token.is_name("is")) fail("you cannot chain multiple tests with is");
      test->arguments.positional.push_back(parse_postfix(parse_primary()));
      note_depth(*test, test->arguments.positional.back());
    }
    if (!negated) return test;
    auto e2 = make(Kind::Not);
    adopt(*e2, std::move(test));
    return e2;
  }

  std::vector<JinjaToken> tokens_;
  size_t at_ = 0;
  int block_depth_ = 0, loop_depth_ = 0, nest_ = 0;
};

}  // namespace

JinjaBody parse_template(std::string_view source) { return Parser(source).run(); }

}  // namespace quern
