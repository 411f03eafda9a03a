// LoRA of adapters on the host by workers beside the team: rows, matrices and results.
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/backend/cpu/cpu_device_impl.h"

namespace servelab {

int& CpuDevice::Impl::job_of(int layer, Fused which) {
  return job_of_[static_cast<std::size_t>(layer) * kFusedMatrices +
                 static_cast<std::size_t>(which)];
}

// Gives the segments of adapters on the host to the workers, if there are any, from a layer on.
void CpuDevice::Impl::open_round(int layer_begin) {
  at_workers_.clear();
  if (workers_ == nullptr || hosted_.empty() || !lora_) return;
  const auto hosted = [this](const Segment& segment) {
    return std::any_of(hosted_.begin(), hosted_.end(),
                       [&](const Hosted& h) { return h.adapter == segment.adapter; });
  };
  for (std::vector<Segment>* segments : {&decodes_, &prefills_}) {
    std::copy_if(segments->begin(), segments->end(), std::back_inserter(at_workers_), hosted);
    std::erase_if(*segments, hosted);
  }
  jobs_.clear();
  for (int layer = layer_begin; layer < model_.layers; ++layer) {
    for (const Fused which : kAllFused) {
      host_lora::Job job{layer, shapes_.fused(which).k, widest_output_, 0, {}};
      for (const LinearLayer target : members(which)) {
        const bool changed = std::any_of(hosted_.begin(), hosted_.end(), [&](const Hosted& h) {
          return h.adapter->find(layer, target) != nullptr;
        });
        if (!changed) continue;
        const FusedPlace at = place_of(shapes_, target);
        job.target[static_cast<std::size_t>(job.targets++)] = {static_cast<std::int32_t>(target),
                                                               at.begin, at.rows};
      }
      job_of(layer, which) = job.targets == 0 ? -1 : static_cast<int>(jobs_.size());
      if (job.targets > 0) jobs_.push_back(job);
    }
  }
  if (jobs_.empty() || at_workers_.empty()) {
    std::fill(job_of_.begin(), job_of_.end(), -1);
    return;
  }
  std::vector<host_lora::Group> groups;
  for (const Segment& segment : at_workers_) {
    groups.push_back({segment.adapter->packed(), segment.row, segment.rows});
  }
  const host_lora::Rows rows{options_.type, kernels::DType::kF32, widest_input_, widest_output_,
                             false};
  workers_->begin(rows, groups, jobs_);
  round_open_ = true;
}

// Within a pass, while all other members wait: some adapters are the team's own from now on.
void CpuDevice::Impl::reopen_round(int layer) {
  workers_->abandon();
  round_open_ = false;
  try {
    workers_->finish();
    prefills_.insert(prefills_.end(), at_workers_.begin(), at_workers_.end());
    open_round(layer);
  } catch (...) {
    host_failure_ = std::current_exception();
  }
}

void CpuDevice::Impl::close_round(DeviceResult* result) {
  if (workers_ == nullptr) return;
  if (std::exchange(round_open_, false)) workers_->finish();
  if (host_failure_ != nullptr) std::rethrow_exception(std::exchange(host_failure_, nullptr));
  result->host_work = workers_->take_work();
}

// Of the leading member, as its input is known to all.
void CpuDevice::Impl::post_host(int layer, Fused which) {
  if (round_open_ && job_of(layer, which) >= 0) workers_->post(job_of(layer, which));
}

// Of the leading member, before all may read what the workers have computed.
void CpuDevice::Impl::await_host(int layer, Fused which) {
  if (!round_open_ || job_of(layer, which) < 0) return;
  try {
    workers_->wait(job_of(layer, which));
  } catch (...) {  // the other members are at the barrier
    host_failure_ = std::current_exception();
  }
}

void CpuDevice::Impl::add_host(LinearLayer target, int layer, float* y, std::int64_t ldy,
                               const Share& share) {
  const auto* const results = reinterpret_cast<const float*>(workers_->out());
  const FusedPlace at = place_of(shapes_, target);
  const int columns = share.column_end - share.column_begin;
  for (const Segment& segment : at_workers_) {
    const kernels::LoraPair* const pair = segment.adapter->find(layer, target);
    if (pair == nullptr || columns <= 0) continue;
    const int begin = std::max(share.row_begin, segment.row);
    const int end = std::min(share.row_end, segment.row + segment.rows);
    for (int row = begin; row < end; ++row) {
      ops_.add_scaled(
          pair->scale,
          results + static_cast<std::int64_t>(row) * widest_output_ + at.begin + share.column_begin,
          y + row * ldy + share.column_begin, columns);
    }
  }
}

}  // namespace servelab
