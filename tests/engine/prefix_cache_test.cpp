// A prompt that finds its beginning in the cache says what it says from a cold start: from memory, from disk, in another
// process; and a snapshot file that is not what was written is noticed, whichever byte it is.
#include "engine/prefix_cache.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "engine/tiny_engine.h"
#include "patience.h"

namespace quern {
namespace {

namespace fs = std::filesystem;

// Snapshots lie at the bases. quern-tiny selects 64 tokens and the last 0-3: prompts behind the first base lie around
// that, those behind the second beyond.
constexpr int64_t kBases[] = {64, 192};

// Prompts end 0 … 67 tokens behind the first base; behind the second, at both ends of that. Under sanitizers, whose
// finds do not depend on each number, at the ends only, and a few of the second's.
std::vector<int64_t> tails_of(int64_t base) {
  std::vector<int64_t> tails;
  for (int64_t tail = 0; tail <= 67; ++tail) {
    const bool end = tail <= 5 || tail >= 62;
    if (test::kSanitized ? tail <= 1 || tail == 64 || (base == 64 && tail >= 66) : base == 64 || end)
      tails.push_back(tail);
  }
  return tails;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Greedy, with log-probabilities: a state that is off by a bit shows in them long before it shows in ids.
Request ask_closely(std::vector<int32_t> prompt, int64_t max_tokens = 4) {
  Request r = ask_for(std::move(prompt), max_tokens);
  r.sampling.n_logprobs = 4;
  return r;
}

Request tail_request(int64_t base, int64_t tail) {
  return ask_closely(
      joined(ids_of(base, static_cast<uint32_t>(base)), ids_of(tail, static_cast<uint32_t>(1000 + tail))));
}

// Leaves snapshots at base, and at base - 64 for the prompt that ends at base: one row at least is run.
Request first_request(int64_t base) {
  Request r = ask_closely(joined(ids_of(base, static_cast<uint32_t>(base)), {5}), 1);
  if (base > 64) r.snapshot_points = {base - 64};
  return r;
}

int64_t resumes_at(int64_t base, int64_t tail) { return tail > 0 ? base : base - 64; }

// The reply's ids and the bits of its log-probabilities.
std::string told(const Outcome& o) {
  std::string text;
  for (size_t i = 0; i < o.ids.size(); ++i) {
    text += fmt::format(" {}:{:08x}", o.ids[i], std::bit_cast<uint32_t>(o.logprobs.at(i).logprob));
    for (const auto& [id, logprob] : o.logprobs[i].top)
      text += fmt::format(",{}:{:08x}", id, std::bit_cast<uint32_t>(logprob));
  }
  return text;
}

EngineOptions with_disk(const fs::path& folder) {
  EngineOptions options;
  options.snapshot_directory = folder.string();
  return options;
}

// One line a prompt, each from disk: what is in memory is forgotten before it.
std::string ask_all_from_disk(const fs::path& folder) {
  TinyModel tiny(64, 2);
  TinyEngine engine(tiny, with_disk(folder));
  std::string lines;
  for (const int64_t base : kBases)
    for (const int64_t tail : tails_of(base)) {
      engine.core.cache().index().clear();
      const Outcome o = engine.ask(tail_request(base, tail));
      lines += fmt::format("{} + {}, {} cached:{}\n", base, tail, o.usage.cached_tokens, told(o));
    }
  return lines;
}

TEST(PrefixCache, a_hit_is_a_cold_start_from_ram_from_disk_and_in_another_process) {
  TinyModel tiny(64, 2);
  EngineOptions none;
  none.prefix_cache = false;
  none.max_drafts = 0;
  std::string expected;
  std::map<std::pair<int64_t, int64_t>, std::string> cold;
  for (const int64_t base : kBases)
    for (const int64_t tail : tails_of(base)) {
      const Request request = tail_request(base, tail);
      const Outcome o = TinyEngine(tiny, none).ask(request);
      ASSERT_EQ(o.usage.cached_tokens, 0);
      if (tail % 9 == 0) {
        ASSERT_EQ(o.ids, alone(tiny, request)) << base << " + " << tail;
      }
      cold[{base, tail}] = told(o);
      expected += fmt::format("{} + {}, {} cached:{}\n", base, tail, resumes_at(base, tail), told(o));
    }

  for (const int64_t base : kBases) {
    TinyEngine engine(tiny, {});
    engine.ask(first_request(base));
    for (const int64_t tail : tails_of(base)) {
      const Outcome o = engine.ask(tail_request(base, tail));
      ASSERT_EQ(told(o), (cold[{base, tail}])) << tail << " tokens behind " << base << ", from memory";
      ASSERT_EQ(o.usage.cached_tokens, resumes_at(base, tail)) << tail << " tokens behind " << base;
    }
  }

  const Folder written, here, there;
  {
    TinyEngine engine(tiny, with_disk(written.path));
    for (const int64_t base : kBases) engine.ask(first_request(base));
  }
  for (const Folder* copy : {&here, &there})
    fs::copy(written.path, copy->path, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  ASSERT_EQ(std::distance(fs::directory_iterator(here.path), {}), 3);
  EXPECT_EQ(ask_all_from_disk(here.path), expected);

  FILE* process = ::popen(
      fmt::format("{} --ask {}", fs::read_symlink("/proc/self/exe").string(), there.path.string()).c_str(),
      "r");
  ASSERT_NE(process, nullptr);
  std::string lines;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, process)) lines.append(buffer, n);
  ASSERT_EQ(::pclose(process), 0);
  EXPECT_EQ(lines, expected);
}

TEST(PrefixCache, a_hit_is_a_cold_start_with_an_end_of_text_around_the_snapshot) {
  TinyModel tiny(64, 2);
  const Folder folder;
  for (int64_t at = 64 - 4; at <= 64 + 3; at += test::kSanitized ? 3 : 1) {
    auto ids = ids_of(64 + 6, 77);
    for (int32_t& id : ids) id = id == 4000 ? 1 : id;
    ids[at] = 4000;  // <|endoftext|> cuts the n-grams' context
    TinyEngine engine(tiny, with_disk(folder.path));
    for (int64_t size = 64 + 6; size > 64; size -= test::kSanitized ? 5 : 1) {
      const Request request = ask_closely({ids.begin(), ids.begin() + size});
      const auto expected = alone(tiny, request);
      ASSERT_EQ(engine.ask(request).ids, expected);
      const Outcome ram = engine.ask(request);
      engine.core.cache().flush();
      engine.core.cache().index().clear();
      const Outcome disk = engine.ask(request);
      for (const Outcome* o : {&ram, &disk}) {
        ASSERT_EQ(o->ids, expected) << "end of text at " << at << ", " << size << " tokens";
        ASSERT_EQ(o->usage.cached_tokens, 64);
      }
      ASSERT_EQ(told(ram), told(disk));
    }
  }
}

// Where the parts of a file lie (cache/snapshot_store.h).
struct Part {
  const char* name;
  size_t begin, end;
};

std::vector<Part> parts_of(const std::string& file) {
  const auto number = [&](size_t at, size_t bytes) {
    uint64_t n = 0;
    std::memcpy(&n, file.data() + at, bytes);
    return static_cast<size_t>(n);
  };
  const size_t fingerprint = number(12, 4), tokens = number(24, 8) - number(16, 8), page = number(32, 8);
  std::vector<Part> parts = {
      {"magic", 0, 8},      {"version", 8, 12},     {"fingerprint's length", 12, 16}, {"begin", 16, 24},
      {"position", 24, 32}, {"page bytes", 32, 40}, {"snapshot bytes", 40, 48},       {"file bytes", 48, 56},
      {"key", 56, 72},      {"key before", 72, 88}, {"header's checksum", 88, 96}};
  const auto more = [&](const char* name, size_t bytes) {
    parts.push_back({name, parts.back().end, parts.back().end + bytes});
  };
  more("fingerprint", fingerprint);
  more("ids", tokens * 4);
  more("pages", tokens / kPageTokens * page);
  more("snapshot", number(40, 8));
  more("checksum", 16);
  return parts;
}

TEST(PrefixCache, a_file_that_is_not_what_was_written_is_noticed_and_costs_time_only) {
  const Folder folder;
  TinyModel tiny(64, 2);
  const Request request = ask_closely(ids_of(150, 3));
  const auto expected = alone(tiny, request);
  { TinyEngine(tiny, with_disk(folder.path)).ask(request); }
  const fs::path file = *fs::directory_iterator(folder.path);
  std::ifstream in(file, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const auto parts = parts_of(good);
  ASSERT_EQ(parts.back().end, good.size());
  EXPECT_EQ(TinyEngine(tiny, with_disk(folder.path)).ask(request).usage.cached_tokens, 128);

  const auto check = [&](const std::string& bad, const std::string& what) {
    std::ofstream(file, std::ios::binary) << bad;
    testing::internal::CaptureStderr();
    Outcome o;
    { o = TinyEngine(tiny, with_disk(folder.path)).ask(request); }
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(o.ids, expected) << what;
    EXPECT_EQ(o.usage.cached_tokens, 0) << what;
    EXPECT_THAT(log, testing::HasSubstr("skipped")) << what;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << what << ": " << log;
  };
  const uint32_t seed = std::random_device{}();
  fmt::print("positions of seed {}\n", seed);
  std::mt19937 random(seed);
  for (const Part& part : parts)
    for (int i = 0; i < (part.end - part.begin > 1000 ? 4 : 1); ++i) {
      const size_t at = part.begin + random() % (part.end - part.begin);
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
      check(bad, fmt::format("{}, byte {} (seed {})", part.name, at, seed));
    }
  for (const size_t size : {size_t{0}, size_t{95}, size_t{96}, good.size() / 2, good.size() - 1})
    check(good.substr(0, size), fmt::format("cut to {} bytes", size));
  check(good + "x", "a byte too many");
  std::string noise(good.size(), '\0');
  for (char& c : noise) c = static_cast<char>(random());
  check(noise, fmt::format("noise of seed {}", seed));
  // Of another model of the same shape: made by another origin.
  fs::remove(file);
  TinyModel f32(64, 2, 640, 4096, 1, DType::F32);
  { TinyEngine(f32, with_disk(folder.path)).ask(request); }
  std::ifstream other(file, std::ios::binary);
  check(std::string((std::istreambuf_iterator<char>(other)), {}), "float32 keys and values");

  std::ofstream(file, std::ios::binary) << good;
  EXPECT_EQ(TinyEngine(tiny, with_disk(folder.path)).ask(request).usage.cached_tokens, 128);
}

TEST(PrefixCache, the_next_turn_computes_its_tail_only_and_the_reply_is_shared_on_the_cpu) {
  TinyModel tiny(64, 2);
  TinyEngine engine(tiny, {});
  Request first = ask_closely(ids_of(200, 9), 150);
  first.snapshot_points = {70, 200};
  const Outcome o = engine.ask(first);
  const auto turn = joined(joined(first.prompt, o.ids), ids_of(20, 10));
  const Outcome second = engine.ask(ask_closely(turn));
  EXPECT_EQ(second.ids, alone(tiny, ask_closely(turn)));
  EXPECT_GE(second.usage.cached_tokens, 320);  // 349 ids of prompt and reply are computed
  // An edit of the last line only goes back to the boundary before it.
  const auto edited = joined(first.prompt, ids_of(50, 11));
  EXPECT_EQ(engine.ask(ask_closely(edited)).usage.cached_tokens, 192);
}

TEST(PrefixCache, two_requests_in_flight_share_their_common_prefix) {
  TinyModel tiny(64, 4);
  TinyEngine engine(tiny, {});
  const auto head = ids_of(400, 21);
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 3; ++i) {
    requests.push_back(ask_closely(joined(head, ids_of(30 + i, 30 + i))));
    ids.push_back(engine.submit(requests.back()));
  }
  engine.run();
  for (size_t i = 0; i < ids.size(); ++i) {
    const Outcome& o = engine.outcomes.at({ids[i], 0});
    EXPECT_EQ(o.ids, alone(tiny, requests[i]));
    EXPECT_EQ(o.usage.cached_tokens, i == 0 ? 0 : 384);
  }
}

}  // namespace

// The second process: one line a prompt, from the folder's files.
int ask_main(const char* folder) {
  fmt::print("{}", ask_all_from_disk(folder));
  return 0;
}

}  // namespace quern

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--ask") == 0) return quern::ask_main(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
