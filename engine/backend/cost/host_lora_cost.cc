#include "engine/backend/cost/host_lora_cost.h"

#include <algorithm>
#include <cmath>

#include "engine/backend/cost/op_cost.h"

namespace servelab {
namespace {

constexpr double kBytesPerElement = 2;  // bf16
constexpr double kUsPerSecond = 1e6;

}  // namespace

double host_core_us(const HostLoraConstants& host, double rows, double rank, double width) {
  const double elements = rank * width;
  return (kBytesPerElement * elements / host.core_bytes_per_s +
          2 * rows * elements / host.core_flops) *
         kUsPerSecond;
}

HostVisitTime host_visit(const HardwareProfile& hw, const BatchShape& batch, HostCopy copy,
                         int devices, const HostVisit& visit, double device_us) {
  const HostLoraConstants& host = hw.host_lora;
  const auto tokens = static_cast<double>(batch.host_tokens);
  const auto requests = static_cast<double>(batch.host_requests);
  const double mean_rows = tokens / requests;
  const double chunks = requests * std::ceil(mean_rows / host.chunk_rows);
  const double rounds = std::ceil(chunks * visit.targets * devices / host.cores);
  const double compute =
      rounds * host_core_us(host, std::min(mean_rows, static_cast<double>(host.chunk_rows)),
                            batch.host_max_rank, visit.width);
  const double bytes = kBytesPerElement * tokens * visit.in;
  double there =
      copy == HostCopy::kPageable ? pageable_to_host_us(hw, bytes) : host_copy_us(hw, bytes);
  if (copy != HostCopy::kFused) there += host.sync_us;
  const double back = host_copy_us(hw, kBytesPerElement * tokens * visit.out);
  const double beside = 2 * host.signal_us + compute;
  return {there + std::max(0.0, beside - device_us) + back, back};
}

}  // namespace servelab
