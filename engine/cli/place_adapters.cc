#include "engine/cli/place_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/cli/place_server.h"
#include "engine/core/params.h"
#include "engine/workload/csv.h"
#include "engine/workload/request_trace.h"

namespace servelab {
namespace {

// Why a plan or vLLM (`--lora-modules NAME=PATH`) could not carry this name; empty where they can.
std::string bad_name(const std::string& name) {
  if (name.empty()) return "the adapter has no name";
  if (name.find('=') != std::string::npos) return "the adapter's name has a '='";
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), is_control)) return "the name has control characters";
  try {
    nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    return "the adapter's name is not UTF-8";
  }
  return "";
}

}  // namespace

std::vector<NamedAdapter> read_adapters(const std::string& path) {
  CsvReader csv(path, "the columns are name, rank, rate (requests/s), and path if it is known");
  const std::size_t name = csv.column("name"), rank = csv.column("rank"), rate = csv.column("rate");
  std::vector<NamedAdapter> adapters;
  std::map<std::string, int> lines;
  while (csv.next()) {
    NamedAdapter adapter;
    adapter.name = csv.text(name);
    const std::string bad = bad_name(adapter.name);
    if (!bad.empty()) csv.fail(bad);
    const auto [at, is_new] = lines.emplace(adapter.name, csv.line_number());
    if (!is_new) csv.fail(fmt::format("adapter '{}' is in line {} too", adapter.name, at->second));
    if (csv.text(rank).empty()) csv.fail("adapter '" + adapter.name + "' has no rank");
    if (csv.text(rate).empty()) csv.fail("adapter '" + adapter.name + "' has no rate");
    const std::int64_t wide = csv.count(rank);
    if (wide < 1 || wide > kMostVllmRank) {
      csv.fail(
          fmt::format("rank {} of adapter '{}' is not 1 to {}", wide, adapter.name, kMostVllmRank));
    }
    adapter.rank = static_cast<int>(wide);
    adapter.rate = csv.non_negative(rate);
    adapter.path = csv.has_column("path") ? std::string(csv.text(csv.column("path"))) : "";
    adapters.push_back(std::move(adapter));
  }
  if (adapters.empty()) throw SpecError(path + ": has no adapters");
  return adapters;
}

std::vector<NamedAdapter> adapters_of_trace(const std::string& path) {
  const RequestTrace trace = read_request_trace(path, "give another trace", RowsFor::kReplay);
  const double span_s = trace.rows.empty() ? 0 : trace.rows.back().at_s;
  if (!(span_s > 0))
    throw SpecError(path + ": its requests span no time, so that there is no rate");
  std::vector<std::int64_t> requests;
  for (const TraceRow& row : trace.rows) {
    if (row.adapter < 0) continue;
    const auto adapter = static_cast<std::size_t>(row.adapter);
    if (adapter >= requests.size()) requests.resize(adapter + 1);
    ++requests[adapter];
  }
  if (requests.empty()) throw SpecError(path + ": no request names an adapter");
  std::vector<NamedAdapter> adapters;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const int rank = i < trace.adapter_ranks.size() ? trace.adapter_ranks[i] : 0;
    if (requests[i] > 0 && (rank < 1 || rank > kMostVllmRank)) {
      throw SpecError(
          fmt::format("{}: adapter {} has no rank from 1 to {}", path, i, kMostVllmRank));
    }
    if (requests[i] == 0) continue;
    adapters.push_back(
        {fmt::format("adapter-{}", i), "", rank, static_cast<double>(requests[i]) / span_s});
  }
  return adapters;
}

std::vector<int> gpus_before(const std::string& path, const std::vector<NamedAdapter>& adapters) {
  const ConfigNode plan = parse_yaml_file(path);
  const ConfigNode* known = plan.find("adapters");
  if (known == nullptr || !known->is_map()) {
    throw SpecError(path + ": is no plan of `servelab place`: it has no map 'adapters'");
  }
  std::map<std::string, int> gpu_of;
  for (const ConfigMember& member : known->members) {
    int gpu = 0;
    ParamFields field;
    field.add(member.key, &gpu, "GPU").range(0, kMostGpus - 1);
    field.all().front().assign(member.value);
    gpu_of[member.key] = gpu;
  }
  std::vector<int> before;
  for (const NamedAdapter& adapter : adapters) {
    const auto found = gpu_of.find(adapter.name);
    before.push_back(found == gpu_of.end() ? -1 : found->second);
  }
  return before;
}

}  // namespace servelab
