#include "engine/cli/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <istream>
#include <ostream>
#include <set>

#include "baselines/shared/kernel_param.h"
#include "baselines/shared/perf_model.h"
#include "engine/model/json_file.h"
#include "engine/spec/spec_text.h"

namespace servelab {
namespace {

constexpr int kMostRank = 1 << 16;
constexpr int kMostRequests = 1'000'000;  // of a server's set
constexpr std::size_t kMostIdBytes = 256;
constexpr std::size_t kMostNamed = 8;  // servers in a message

void check_keys(const JsonObject& object, const std::string& what,
                const std::vector<std::string>& known) {
  for (const auto& [key, value] : object.json().items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    throw SpecError(what + ": unknown key " + in_quotes(key) + "; " + suggest(key, known));
  }
}

std::string id_of(const JsonObject& line, const std::string& key) {
  const std::string id = line.text(key, "");
  if (id.empty() || id.size() > kMostIdBytes) {
    line.refuse(key, fmt::format("must be a text of 1 to {} bytes", kMostIdBytes));
  }
  return id;
}

RankLine line_of(const JsonObject& config, const std::string& phase) {
  if (!config.has(phase))
    config.refuse(phase, "is missing: kernel, prefill and decode go together");
  const JsonObject line(*config.find(phase), config.file(), phase);
  check_keys(line, config.file() + "." + phase, {"alpha_ms", "beta_ms"});
  return {line.number("alpha_ms", kLeastAlphaMs, kMostMs),
          line.number("beta_ms", -kMostMs, kMostMs)};
}

RankModel model_of(const JsonObject& config) {
  const std::string kernel = config.text("kernel", "");
  const std::vector<std::string> known = lora_kernel_names();
  if (std::find(known.begin(), known.end(), kernel) == known.end()) {
    config.refuse("kernel", "must be one of them; " + suggest(kernel, known));
  }
  return {load_of_kernel(kernel), line_of(config, "prefill"), line_of(config, "decode")};
}

// A set of requests: its ranks, and how many they are with those of the base model.
struct RequestSet {
  Ranks ranks;
  std::int64_t requests = 0;
};

RequestSet listed(const Json& list, const JsonObject& line, const std::string& key) {
  RequestSet set;
  for (const Json& item : list) {
    const double rank = item.is_number_integer() ? item.get<double>() : -1;
    if (rank < 0 || rank > kMostRank) {
      line.refuse(key, fmt::format("must hold ranks, whole numbers from 0 to {}; it holds {}",
                                   kMostRank, shown(item)));
    }
    ++set.requests;
    if (rank > 0) set.ranks = set.ranks.with(static_cast<int>(rank));
  }
  return set;
}

RequestSet counted(const JsonObject& counts, const JsonObject& line, const std::string& key) {
  check_keys(counts, "server: '" + key + "'", {"requests", "sum", "max", "base"});
  const int requests = counts.integer("requests", 0, kMostRequests);
  const double sum = counts.number("sum", 0, static_cast<double>(kMostRank) * kMostRequests);
  const int max = counts.integer("max", 0, kMostRank);
  const Ranks ranks{requests, static_cast<std::int64_t>(sum), max};
  const std::int64_t others = requests > 0 ? requests - 1 : 0;
  const bool fits = requests == 0 ? ranks.sum == 0 && max == 0
                                  : max > 0 && ranks.sum >= max + others &&
                                        ranks.sum <= std::int64_t{requests} * max;
  if (!fits || sum != static_cast<double>(ranks.sum)) {
    line.refuse(
        key, fmt::format("cannot be: no {} ranks from 1 to {} add up to {}", requests, max, sum));
  }
  return {ranks, requests + counts.integer("base", 0, kMostRequests, 0)};
}

RequestSet request_set(const JsonObject& line, const std::string& key) {
  const Json* value = line.find(key);
  if (value == nullptr) return {};
  if (value->is_array()) return listed(*value, line, key);
  if (value->is_object()) return counted(JsonObject(*value, "server", key), line, key);
  line.refuse(key, "must be a list of ranks, or their requests, sum and max; got " + shown(*value));
}

std::string error_line(const std::string& what, std::size_t line) {
  Json answer;
  answer["error"] = what;
  answer["line"] = line;
  return answer.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void Scorer::take_config(const JsonObject& config) {
  check_keys(
      config, "config",
      {"kernel", "prefill", "decode", "slo_ms", "penalty_ms", "output_tokens", "idle_is_free"});
  std::optional<RankModel> model = model_;
  RankGoal goal = goal_;
  if (config.has("kernel") || config.has("prefill") || config.has("decode")) {
    model = model_of(config);
    model->idle_is_free = model_ && model_->idle_is_free;
  }
  if (config.has("idle_is_free")) {
    if (!model) config.refuse("idle_is_free", "is of a model, and there is none yet");
    model->idle_is_free = config.boolean("idle_is_free", false);
  }
  if (config.has("slo_ms")) goal.slo_ms = config.number("slo_ms", kLeastSloMs, kMostMs);
  goal.penalty_ms = config.number("penalty_ms", 0, kMostPenaltyMs, goal.penalty_ms);
  goal.output_tokens = config.number("output_tokens", 1, kMostOutputTokens, goal.output_tokens);
  model_ = model;
  goal_ = goal;
}

void Scorer::take_server(const JsonObject& line) {
  check_keys(line, "server", {"server", "running", "queued", "gone"});
  const std::string id = id_of(line, "server");
  const auto known = order_of_.find(id);
  if (line.boolean("gone", false)) {
    if (known == order_of_.end()) throw SpecError("server: unknown server " + in_quotes(id));
    servers_.erase(known->second);
    order_of_.erase(known);
    return;
  }
  const RequestSet running = request_set(line, "running"), queued = request_set(line, "queued");
  const RankServer state{queued.ranks, running.ranks.with(queued.ranks),
                         running.requests + queued.requests};
  if (known != order_of_.end()) {
    servers_[known->second].state = state;
    return;
  }
  if (servers_.size() == kMostScoreServers) {
    throw SpecError(fmt::format("server: there are {} already; forget some with gone: true",
                                kMostScoreServers));
  }
  order_of_[id] = next_;
  servers_[next_++] = {id, state};
}

std::vector<const Scorer::Server*> Scorer::candidates(const JsonObject& line) const {
  std::vector<const Server*> servers;
  if (!line.has("servers")) {
    for (const auto& [order, server] : servers_) servers.push_back(&server);
  }
  std::set<std::string> seen;
  for (const std::string& id : line.texts("servers")) {
    if (!seen.insert(id).second) line.refuse("servers", "names " + in_quotes(id) + " twice");
    const auto found = order_of_.find(id);
    if (found == order_of_.end()) {
      std::vector<std::string> known;
      for (const auto& [order, server] : servers_) {
        if (known.size() < kMostNamed) known.push_back(server.id);
      }
      throw SpecError("request: unknown server " + in_quotes(id) + "; " + suggest(id, known));
    }
    servers.push_back(&servers_.at(found->second));
  }
  if (servers.empty()) throw SpecError("request: no server to choose; send server lines first");
  return servers;
}

std::string Scorer::answer_request(const JsonObject& line) const {
  check_keys(line, "request", {"request", "rank", "servers"});
  Json answer;
  answer["request"] = id_of(line, "request");
  const int rank = line.integer("rank", 0, kMostRank);
  if (!model_) {
    throw SpecError("request: there is no performance model; give --model FILE, or a config line");
  }
  const std::vector<const Server*> servers = candidates(line);
  LeastCost least;
  Json costs = Json::object();
  for (std::size_t i = 0; i < servers.size(); ++i) {
    const double cost = total_cost_ms(*model_, servers[i]->state, rank, goal_);
    least.offer(i, cost);
    costs[servers[i]->id] = cost;
  }
  answer["server"] = servers[least.server()]->id;
  answer["costs_ms"] = std::move(costs);
  return answer.dump();
}

std::string Scorer::answer(std::string_view text) {
  if (!Json::accept(text)) throw SpecError("is not JSON, or has a number beyond any double");
  const Json json = parse_json<Json>(text, "the line");
  const JsonObject line(json, "the line");
  const bool is_config = line.has("config"), is_server = line.has("server");
  if (is_config + is_server + line.has("request") != 1) {
    throw SpecError("the line must have one of the keys config, server, request");
  }
  if (is_config) {
    check_keys(line, "config", {"config"});
    take_config(JsonObject(*line.find("config"), "config"));
    return "";
  }
  if (!is_server) return answer_request(JsonObject(json, "request"));
  take_server(JsonObject(json, "server"));
  return "";
}

std::size_t score_lines(Scorer* scorer, std::istream& in, std::ostream& out) {
  std::size_t bad = 0, number = 0;
  std::string line;
  while (in && out) {
    line.clear();
    bool is_long = false, is_end = true;
    for (int c = in.get(); c != std::istream::traits_type::eof(); c = in.get()) {
      is_end = false;
      if (c == '\n') break;
      is_long = is_long || line.size() == kMostScoreLineBytes;
      if (!is_long) line += static_cast<char>(c);
    }
    if (is_end) break;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::string answer;
    try {
      if (is_long) {
        throw SpecError(fmt::format("the line is longer than {} bytes", kMostScoreLineBytes));
      }
      answer = scorer->answer(line);
    } catch (const SpecError& problem) {
      ++bad;
      answer = error_line(problem.what(), number);
    }
    if (!answer.empty()) out << answer << '\n' << std::flush;
  }
  return bad;
}

}  // namespace servelab
