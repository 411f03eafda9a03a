#include "engine/workload/data_files.h"

#include <algorithm>
#include <filesystem>

#include "engine/core/digest.h"

namespace servelab {
namespace {

constexpr char kCcBy[] = "CC-BY 4.0";
constexpr char kAzure2019[] = "CC-BY 4.0 (Shahrad et al., ATC'20)";
constexpr char kAzure2021[] = "CC-BY 4.0 (Zhang et al., SOSP'21)";
constexpr char kSplitwise[] = "CC-BY 4.0 (Patel et al., ISCA'24)";
constexpr char kApache[] = "Apache-2.0";

bool ends_with(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() &&
         text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

}  // namespace

const std::vector<DataFile>& data_files() {
  using enum TraceKind;
  static const std::vector<DataFile> files = {
      {"maf1", kFunctions, "azure_functions_2019/sample1350_one_day_minute_of_day.csv.gz",
       kAzure2019, "maf1"},
      {"maf1-d01", kFunctions, "azure_functions_2019/d01.csv.gz", kAzure2019, "maf1-d01"},
      {"maf1-500", kFunctions, "azure_functions_2019/sample500_per_minute_m480_959.csv.gz",
       kAzure2019, "maf1-500"},
      {"maf1-1250", kFunctions, "azure_functions_2019/sample1250_14day_sum_minute_of_day.csv.gz",
       kAzure2019, "maf1-1250"},
      {"maf2", kFunctions, "azure_functions_2021/app_totals.csv", kAzure2021, ""},
      {"maf2-full", kFunctions, "azure_functions_2021/functions_per_minute.csv.gz", kAzure2021,
       "maf2-full"},
      {"azure-llm-conv", kRequests, "azure_llm_2023/conv.csv.gz", kSplitwise, "azure-llm-conv"},
      {"azure-llm-code", kRequests, "azure_llm_2023/code.csv.gz", kSplitwise, "azure-llm-code"},
      {"mooncake-conversation", kRequests, "mooncake/conversation.csv.gz", kApache,
       "mooncake-conversation"},
      {"mooncake-synthetic", kRequests, "mooncake/synthetic.csv.gz", kApache, "mooncake-synthetic"},
      {"burstgpt", kRequests, "burstgpt/BurstGPT_1.csv", kCcBy, "burstgpt"},
      {"sharegpt", kLengths, "length_sets/sharegpt_first_two_turns.csv.gz",
       "Apache-2.0, as its page says", "sharegpt"},
      {"sharegpt-8k", kLengths, "length_sets/sharegpt_8k_llama2tok.csv.gz", kApache, "sharegpt-8k"},
      {"bwb", kLengths, "length_sets/bwb_llama2tok.csv.gz", kApache, "bwb"},
      {"arxiv", kLengths, "length_sets/arxiv_summarization_llama2tok.csv.gz", "MIT", "arxiv"},
      {"alpaca", kLengths, "alpaca/alpaca_5000_llama2tok.csv.gz", "CC BY-NC 4.0", "alpaca"},
      {"alpaca-template", kLengths, "alpaca/alpaca_5000_llama2tok.csv.gz", "CC BY-NC 4.0",
       "alpaca"},
      {"gentd26", kPopularity, "gentd26_lora/adapter_popularity.csv", "research use (GenTD26)", ""},
      {"caraserve-128", kPopularity, "caraserve_maf/toppings_maf_popularity_128.csv", kAzure2019,
       "caraserve"},
      {"caraserve-256", kPopularity, "caraserve_maf/toppings_maf_popularity_256.csv", kAzure2019,
       "caraserve"},
      {"caraserve-512", kPopularity, "caraserve_maf/toppings_maf_popularity_512.csv", kAzure2019,
       "caraserve"},
      {"caraserve-rate-128", kRate, "caraserve_maf/toppings_maf_trace_128_scale0.4_per_second.csv",
       kAzure2019, "caraserve"},
      {"caraserve-rate-256", kRate, "caraserve_maf/toppings_maf_trace_256_scale0.4_per_second.csv",
       kAzure2019, "caraserve"},
      {"caraserve-rate-512", kRate, "caraserve_maf/toppings_maf_trace_512_scale0.4_per_second.csv",
       kAzure2019, "caraserve"},
      {"servegen-m-large", kClients, "servegen/client_rate_10min.csv.gz", kApache, ""},
      {"servegen-m-mid", kClients, "servegen/client_rate_10min.csv.gz", kApache, ""},
      {"servegen-m-small", kClients, "servegen/client_rate_10min.csv.gz", kApache, ""},
      {"servegen-deepseek-r1", kClients, "servegen/client_rate_10min.csv.gz", kApache, ""},
      {"servegen-mm-image", kClients, "servegen/client_rate_10min.csv.gz", kApache, ""},
  };
  return files;
}

const DataFile* find_data_file(const std::string& name) {
  const auto& files = data_files();
  const auto at = std::find_if(files.begin(), files.end(),
                               [&](const DataFile& file) { return file.name == name; });
  return at == files.end() ? nullptr : &*at;
}

std::vector<std::string> data_file_names(const std::vector<TraceKind>& kinds) {
  std::vector<std::string> names;
  for (const DataFile& file : data_files()) {
    if (std::find(kinds.begin(), kinds.end(), file.kind) != kinds.end()) names.push_back(file.name);
  }
  return names;
}

std::optional<std::string> locate(const DataFile& file, const std::string& data_dir) {
  if (data_dir.empty()) return std::nullopt;
  const std::string path = data_dir + "/" + file.path;
  const std::string other = ends_with(path, ".gz") ? path.substr(0, path.size() - 3) : path + ".gz";
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return path;
  if (std::filesystem::exists(other, ignored)) return other;
  return std::nullopt;
}

std::string remedy_for(const DataFile& file) {
  if (file.fetch.empty()) {
    return "make it by hand (data/README.md gives the table) and set SERVELAB_DATA to the folder "
           "that has it";
  }
  return "run 'data/fetch " + file.fetch + "' or set SERVELAB_DATA to the folder that has it";
}

bool is_own_file(const std::string& name) {
  return ends_with(name, ".csv") || ends_with(name, ".csv.gz") || ends_with(name, ".jsonl") ||
         ends_with(name, ".jsonl.gz");
}

std::string own_file_path(const std::string& name, const std::string& data_dir,
                          const SourceMark& mark) {
  std::error_code ignored;
  const std::string inside = data_dir + "/" + name;
  const bool may_be_inside = !data_dir.empty() && name.front() != '/';
  if (may_be_inside && std::filesystem::exists(inside, ignored)) return inside;
  if (std::filesystem::exists(name, ignored)) return name;
  throw SpecError(mark, "no such file '" + name + "': looked for it as " +
                            (may_be_inside ? "'" + inside + "' and " : "") + "'" +
                            std::filesystem::absolute(name, ignored).string() + "'");
}

WorkloadSource source_of(const std::string& role, const std::string& name, const std::string& path,
                         const std::string& data_dir, const std::string& licence) {
  const bool inside = !data_dir.empty() && path.rfind(data_dir + "/", 0) == 0;
  const std::string origin =
      inside ? path.substr(data_dir.size() + 1) : std::filesystem::path(path).filename().string();
  return {role, name, origin, sha256_file_hex(path), licence};
}

WorkloadSource embedded_source(const std::string& role, const std::string& name) {
  return {role, name, "embedded", "", "statistics only; see data/README.md"};
}

}  // namespace servelab
