#include "engine/backend/cuda/sm_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/core/check.h"

namespace servelab::cuda {

SmShares::SmShares(std::unique_ptr<SmGroups> groups)
    : groups_(std::move(groups)), grants_(static_cast<std::size_t>(groups_->groups())) {}

int SmShares::load_of(int begin, int count) const {
  const auto first = grants_.begin() + begin;
  return std::accumulate(first, first + count, 0);
}

std::unique_ptr<SmShares::Grant> SmShares::take(double share, int preferred) {
  SL_CHECK(share > 0 && share <= 1, "a share of the SMs is in (0, 1]");
  const double wanted = share * groups_->sms() / groups_->sms_per_group();
  const int count = std::clamp(static_cast<int>(std::lround(wanted)), 1, groups_->groups());
  const std::lock_guard lock(mutex_);
  const int last = groups_->groups() - count;
  int begin = std::clamp(preferred, 0, last);
  for (int place = 0; place <= last; ++place) {
    if (load_of(place, count) < load_of(begin, count)) begin = place;
  }
  auto grant = std::make_unique<Grant>(this, begin, count, groups_->take_stream(begin, count));
  for (int i = begin; i < begin + count; ++i) ++grants_[static_cast<std::size_t>(i)];
  return grant;
}

void SmShares::give_back(const Grant& grant) {
  const std::lock_guard lock(mutex_);
  groups_->give_back(grant.begin(), grant.count(), grant.stream());
  for (int i = grant.begin(); i < grant.begin() + grant.count(); ++i) {
    --grants_[static_cast<std::size_t>(i)];
  }
}

}  // namespace servelab::cuda
