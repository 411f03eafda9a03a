#include "engine/serve/decode_batch.h"

#include <algorithm>

#include "engine/core/check.h"

namespace servelab {

void DecodeBatch::begin(int block_tokens, int page_blocks, bool stands) {
  block_tokens_ = block_tokens;
  page_blocks_ = page_blocks;
  stands_ = stands;
  started_ = ended_ = told_ = 0;
  first_end_ = INT64_MAX;
  owed_blocks_ = 0;
  pages_.assign(static_cast<std::size_t>(block_tokens), 0);
  next_page_ = 0;
  groups_.clear();
  members_.clear();
  ends_.clear();
  firsts_.clear();
  context_ = lora_rows_ = rank_rows_ = 0;
}

void DecodeBatch::join(const Decoding& request) {
  const std::int64_t at = ended_ + request.left;
  ends_.push_back({at, next_seq_, request.id});
  std::push_heap(ends_.begin(), ends_.end(), later);
  first_end_ = ends_.front().at;
  ++pages_[slot_of(request.room)];
  note_last(request.last_token);
  members_.push_back({request.id, request.adapter, ended_, next_seq_++});
  context_ += request.context;
  if (request.adapter == kBaseModel) return;
  ++lora_rows_;
  rank_rows_ += request.rank;
  const auto is_it = [&](const First& first) { return first.adapter == request.adapter; };
  if (std::none_of(firsts_.begin(), firsts_.end(), is_it)) list_adapter(members_.back());
}

void DecodeBatch::list_adapter(const Member& first) {
  const auto at = std::find_if(firsts_.begin(), firsts_.end(),
                               [&](const First& other) { return other.seq > first.seq; });
  firsts_.insert(at, {first.adapter, first.seq});
}

void DecodeBatch::leave(std::size_t at, const Decoding& request, bool is_last) {
  const std::int64_t seq = members_[at].seq;
  members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(at));
  --pages_[slot_of(request.room)];
  // Requests leave when a step has ended: all had a token then.
  SL_CHECK(groups_.size() == 1 && groups_.front().last == request.last_token,
           "a request leaves a batch at the end of a step");
  if (--groups_.front().count == 0) groups_.clear();
  context_ -= request.context;
  if (request.adapter == kBaseModel) return;
  --lora_rows_;
  rank_rows_ -= request.rank;
  const auto first = std::find_if(firsts_.begin(), firsts_.end(),
                                  [seq](const First& one) { return one.seq == seq; });
  if (first == firsts_.end()) return;
  firsts_.erase(first);
  if (is_last) return;
  const auto next = std::find_if(members_.begin() + static_cast<std::ptrdiff_t>(at), members_.end(),
                                 [&](const Member& m) { return m.adapter == request.adapter; });
  if (next != members_.end()) list_adapter(*next);
}

void DecodeBatch::start() {
  owed_blocks_ += next_blocks();
  ++started_;
  if (++next_page_ == pages_.size()) next_page_ = 0;
}

void DecodeBatch::add_to(BatchShape* shape) const {
  const auto requests = static_cast<std::int64_t>(members_.size());
  shape->tokens += requests;
  shape->sampled += requests;
  shape->decode_requests += requests;
  shape->decode_context += context_ + requests;
  shape->lora_tokens += lora_rows_;
  shape->lora_rank_tokens += rank_rows_;
  shape->lora_decode_rows += lora_rows_;
  shape->lora_decode_rank += rank_rows_;
}

void DecodeBatch::end(TimeNs now, LatencyHistogram* itl) {
  for (const Group& group : groups_) itl->add(now - group.last, group.count);
  for (std::size_t i = 1; i < groups_.size(); ++i) groups_.front().count += groups_[i].count;
  groups_.resize(1);
  groups_.front().last = now;
  last_end_ = now;
  ++ended_;
  context_ += static_cast<std::int64_t>(members_.size());
}

RequestId DecodeBatch::pop_ended() {
  if (ends_.empty() || ends_.front().at > ended_) return kNoRequest;
  std::pop_heap(ends_.begin(), ends_.end(), later);
  const RequestId id = ends_.back().id;
  ends_.pop_back();
  first_end_ = ends_.empty() ? INT64_MAX : ends_.front().at;
  return id;
}

}  // namespace servelab
