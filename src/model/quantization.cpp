#include "model/quantization.h"

#include <algorithm>
#include <initializer_list>

#include "base/json_file.h"
#include "base/wildcard.h"

namespace quern {
namespace {

constexpr int64_t kNvfp4Group = 16, kFp8Group = 128;

bool is_set(const Json& v) {
  if (v.is_bool()) return v.as_bool();
  if (v.is_number()) return v.as_double() != 0;
  if (v.is_string()) return !v.as_string().empty();
  return !v.is_null() && v.size() != 0;
}

// Throws Error for a key that is set and not in `known`.
void refuse_others(const Section& s, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : s.json.as_object()) {
    if (std::find(known.begin(), known.end(), key) == known.end() && is_set(value))
      s.fail(key, "no such key (what it means is not known here)", value);
  }
}

std::string quoted(const std::optional<std::string>& text) {
  return text ? write_json(Json(*text)) : std::string("nothing");
}

void only_group(const Section& s, int64_t size) {
  if (const Json* g = s.get("group_size"); g != nullptr && !(*g == Json(size)))
    s.fail("group_size", fmt::format("{}", size), *g);
}

std::vector<std::string> texts(const Section& s, std::string_view key) {
  std::vector<std::string> out;
  const Json* list = s.get(key);
  if (list == nullptr) return out;
  if (!list->is_array()) s.fail(key, "a list of names", *list);
  for (const Json& name : list->as_array()) {
    if (!name.is_string()) s.fail(key, "a list of names", *list);
    out.push_back(logical_name(name.as_string()));
  }
  return out;
}

std::optional<StoredAs> stored_as(const std::string& algo) {
  if (algo == "NVFP4") return StoredAs::Nvfp4;
  if (algo == "FP8") return StoredAs::Fp8Whole;
  if (algo == "FP8_PB_WO") return StoredAs::Fp8Block;
  return {};
}

Section object(const Section& s, std::string_view key) {
  if (!s.get(key)->is_object()) s.fail(key, "an object", *s.get(key));
  return s.child(key);
}

// The cache of keys and values: eight-bit floats, which we may replace by what is more exact.
void check_cache_scheme(const Section& q) {
  if (const auto algo = q.text_if("kv_cache_quant_algo"); algo && *algo != "FP8")
    q.fail("kv_cache_quant_algo", "\"FP8\" or nothing", *q.get("kv_cache_quant_algo"));
  if (q.get("kv_cache_scheme") == nullptr) return;
  const Section scheme = object(q, "kv_cache_scheme");
  if (scheme.text_if("type").value_or("") != "float" || scheme.integer_if("num_bits", 0, 64) != 8)
    q.fail("kv_cache_scheme", "8-bit floats", *q.get("kv_cache_scheme"));
}

void check_groups(const Section& q) {
  if (q.get("config_groups") == nullptr) return;
  const Section groups = object(q, "config_groups");
  for (const auto& [name, unused] : groups.json.as_object()) {
    const Section group = object(groups, name);
    if (group.get("weights") == nullptr) continue;
    const Section w = object(group, "weights");
    const auto type = w.text_if("type");
    if (type != "float") w.fail("type", "\"float\"", quoted(type));
    const int64_t bits = w.integer("num_bits", 4, 8);
    if (bits != 4 && bits != 8) w.fail("num_bits", "4 or 8", *w.get("num_bits"));
    only_group(w, bits == 4 ? kNvfp4Group : kFp8Group);
    if (const Json* block = w.get("block_structure"); block != nullptr && !(*block == Json("128x128")) &&
                                                      !(*block == Json(Json::Array{kFp8Group, kFp8Group})))
      w.fail("block_structure", "[128,128]", *block);
    w.only("symmetric", true);
    w.only("dynamic", false);
    refuse_others(w,
                  {"type", "num_bits", "group_size", "block_structure", "symmetric", "dynamic", "strategy"});
  }
}

QuantizationRules fp8_rules(const Section& q) {
  QuantizationRules rules;
  rules.kind = Quantization::Fp8Block;
  rules.whole = StoredAs::Fp8Block;
  const Json* block = q.get("weight_block_size");
  if (block == nullptr || !(*block == Json(Json::Array{kFp8Group, kFp8Group})))
    q.fail("weight_block_size", "[128,128]", block == nullptr ? std::string("nothing") : write_json(*block));
  if (const auto fmt = q.text_if("fmt"); fmt && *fmt != "e4m3") q.fail("fmt", "\"e4m3\"", quoted(fmt));
  // Static scales of activations do not go with scales by block: no runtime reads such files.
  if (const auto scheme = q.text_if("activation_scheme"); scheme && *scheme != "dynamic")
    q.fail("activation_scheme", "\"dynamic\"", quoted(scheme));
  // "ue8m0": the scales are powers of two; they are stored as numbers all the same.
  if (const auto fmt = q.text_if("scale_fmt"); fmt && *fmt != "ue8m0" && *fmt != "float")
    q.fail("scale_fmt", "\"ue8m0\" or \"float\"", quoted(fmt));
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    for (std::string& name : texts(q, key)) rules.ignored.push_back(std::move(name));
  }
  refuse_others(q, {"quant_method", "weight_block_size", "fmt", "activation_scheme", "scale_fmt",
                    "modules_to_not_convert", "ignored_layers"});
  return rules;
}

QuantizationRules modelopt_rules(const Section& q) {
  QuantizationRules rules;
  rules.kind = Quantization::ModelOpt;
  const auto algo = q.text_if("quant_algo");
  const auto whole = stored_as(algo.value_or(""));
  if (!whole && algo != "MIXED_PRECISION")
    q.fail("quant_algo", R"("NVFP4", "FP8_PB_WO", "FP8" or "MIXED_PRECISION")", quoted(algo));
  // Folders said to be NVFP4 come with other matrices in FP8; no runtime reads nibbles in one said to be FP8.
  if (whole != StoredAs::Nvfp4) rules.whole = whole;
  only_group(q, whole == StoredAs::Fp8Block || whole == StoredAs::Fp8Whole ? kFp8Group : kNvfp4Group);
  if (q.get("quantized_layers") != nullptr) {
    const Section layers = object(q, "quantized_layers");
    for (const auto& [module, unused] : layers.json.as_object()) {
      const Section how = object(layers, module);
      const auto name = how.text_if("quant_algo");
      const auto stored = stored_as(name.value_or(""));
      if (!stored) how.fail("quant_algo", R"("NVFP4", "FP8_PB_WO" or "FP8")", quoted(name));
      only_group(how, *stored == StoredAs::Nvfp4 ? kNvfp4Group : kFp8Group);
      refuse_others(how, {"quant_algo", "group_size"});
      rules.layers.emplace_back(logical_name(module), *stored);
    }
  }
  check_cache_scheme(q);
  check_groups(q);
  for (const char* key : {"ignore", "exclude_modules"}) {
    for (std::string& name : texts(q, key)) rules.ignored.push_back(std::move(name));
  }
  refuse_others(q, {"quant_method", "quant_algo", "group_size", "quantized_layers", "kv_cache_quant_algo",
                    "kv_cache_scheme", "config_groups", "ignore", "exclude_modules", "producer"});
  return rules;
}

// Whether `module` is what the pattern names, or lies in it.
bool covers(std::string_view pattern, std::string_view module) {
  return matches(pattern, module) || matches(fmt::format("{}.*", pattern), module);
}

std::string_view text_of(StoredAs s) {
  return s == StoredAs::Nvfp4      ? "NVFP4"
         : s == StoredAs::Fp8Block ? "FP8 with scales by block (weight_scale_inv)"
                                   : "FP8 with one scale (weight_scale)";
}

}  // namespace

QuantizationRules parse_quantization(const Section& q) {
  const auto method = q.text_if("quant_method");
  if (method != "fp8" && method != "modelopt")
    q.fail("quant_method", "\"fp8\" or \"modelopt\" (no other is supported)", quoted(method));
  QuantizationRules rules = method == "fp8" ? fp8_rules(q) : modelopt_rules(q);
  rules.place = fmt::format("{}: {}", q.file, q.prefix.substr(0, q.prefix.size() - 1));
  return rules;
}

QuantizationRules read_quant_config_file(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "hf_quant_config.json";
  if (!std::filesystem::exists(path)) return {};
  const Json json = read_json_file(path, size_t{64} << 20);
  const Section file{json, path.string(), ""};
  if (file.get("quantization") == nullptr) file.fail("quantization", "an object", std::string("nothing"));
  const Section q = object(file, "quantization");
  QuantizationRules rules = modelopt_rules(q);
  rules.place = fmt::format("{}: {}", q.file, q.prefix.substr(0, q.prefix.size() - 1));
  return rules;
}

void check_stored_weights(const Checkpoint& checkpoint, const QuantizationRules& rules, bool fp8_table) {
  for (const TensorView& t : checkpoint.tensors()) {
    if ((t.dtype != DType::F8E4M3 && t.dtype != DType::U8) || !t.name.ends_with(".weight") ||
        t.name.starts_with("visual."))
      continue;
    const bool table = t.name.find(".ngram_embedding.") != std::string::npos;
    if (table && fp8_table) continue;
    if (rules.kind == Quantization::None)
      throw Error(
          fmt::format("{}: is {}, and config.json has no quantization_config that says how it was quantised",
                      checkpoint.where(t), name(t.dtype)));
    if (table) continue;  // it has one scale, whatever the lists say of the modules around it
    const StoredAs stored = t.dtype == DType::U8                            ? StoredAs::Nvfp4
                            : checkpoint.find(t.name + "_scale") != nullptr ? StoredAs::Fp8Whole
                                                                            : StoredAs::Fp8Block;
    const std::string module = t.name.substr(0, t.name.size() - 7);
    const auto layer = std::find_if(rules.layers.begin(), rules.layers.end(),
                                    [&](const auto& l) { return covers(l.first, module); });
    const std::optional<StoredAs> wanted =
        layer != rules.layers.end() ? std::optional(layer->second) : rules.whole;
    if (wanted && *wanted != stored)
      throw Error(fmt::format("{}: expected {} as {} says, found {}", checkpoint.where(t), text_of(*wanted),
                              rules.place, text_of(stored)));
    if (layer != rules.layers.end()) continue;
    for (const std::string& ignored : rules.ignored) {
      if (covers(ignored, module))
        throw Error(fmt::format("{}: is {}, but {} says that '{}' is not quantised", checkpoint.where(t),
                                text_of(stored), rules.place, ignored));
    }
  }
}

}  // namespace quern
