// The same sums stand beside the statistics in data/embedded_stats.cc; a test compares.
#include "engine/cli/doctor/data_sums.h"

#include <map>

namespace servelab::doctor {

const std::string* known_sum(const std::string& path) {
  static const std::map<std::string, std::string> sums = {
      {"alpaca/alpaca_5000_llama2tok.csv.gz",
       "af0d104f030eb02faaa86f2a452be7cb1c22f02846464ccdcee4fda5cfb554e7"},
      {"length_sets/sharegpt_8k_llama2tok.csv.gz",
       "a902c895c757f3c23920e57d16f1ef171566a4f13b399e022004f2fd8c83aff7"},
      {"length_sets/bwb_llama2tok.csv.gz",
       "3e4562c9ee77d8cefc26feb71967645bcc9eb873aaee9b3ece2d8f58aab55b61"},
      {"length_sets/arxiv_summarization_llama2tok.csv.gz",
       "b2a14ab8adea86be28f9931be602a5e926016fc777311c7d1272515364f1f218"},
      {"azure_llm_2023/conv.csv.gz",
       "9cdc112c49b6b227c1018df0a0f804184e6fea8b19fad0f91539142a39116dbf"},
      {"azure_llm_2023/code.csv.gz",
       "850911b50b4e4f42d8064ad8d47064f9f105e55562594d403a8080177b9627d6"},
      {"mooncake/conversation.csv.gz",
       "f421c1eb0ac45cf5e8216750091cf4b9d21cbd7bf3ba96d1cf5debed2053356e"},
      {"azure_functions_2019/sample1350_one_day_minute_of_day.csv.gz",
       "897adf84d2cf4bcb7f080876bf4645b3b921cd42111bf1a6383194ce32e81ff5"},
      {"azure_functions_2021/app_totals.csv",
       "a13bb62a87d8b47537acbd2816472bcdefa030ea953dd2e7dd96d81f140f33a5"},
      {"caraserve_maf/toppings_maf_popularity_512.csv",
       "aa01350364d6220bcf60d202290a73fd5b76977ef0f27a858ce0e10f1cbae0ae"},
      {"gentd26_lora/adapter_popularity.csv",
       "b7dde557a0c421fade69aab84f39a2deb546fca7e8dca5174ebbb396c1591f37"},
      {"azure_functions_2021/app_iat_stats_77.csv",
       "901c1f6d3ccb2f082577dc1f1cd4529e1779773a6a07a5a130914c8c58cab6cf"},
  };
  const auto at = sums.find(path);
  return at == sums.end() ? nullptr : &at->second;
}

}  // namespace servelab::doctor
