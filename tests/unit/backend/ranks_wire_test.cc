// Messages between ranks: they come back as they went, and nothing else does any harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "engine/backend/ranks/adapter_content.h"
#include "engine/backend/ranks/hello.h"
#include "engine/backend/ranks/messages.h"
#include "tests/support/device_testing.h"
#include "tests/support/error_of.h"

namespace servelab::ranks {
namespace {

using Bytes = std::span<const std::byte>;
using ::testing::StartsWith;

Hello some_hello() {
  return {{"0123456789abcdef", "models"}, 3, 4, Purpose::kLoads, 0x1234567890abcdef, "node7", 4711};
}

OpenRank some_open() {
  OpenRank open;
  open.model = "fedcba9876543210";
  open.plan.limits = {100, 16, 8, 512};
  open.plan.ranks = 4;
  open.plan.targets = {LinearLayer::kQ, LinearLayer::kDown};
  open.plan.adapters = 5;
  open.plan.widest_rank = 64;
  open.plan.adapter_bytes = 1'000'000;
  open.plan.merges = true;
  open.shard = {2, 4};
  open.group = "a group";
  return open;
}

DeviceJob some_job() {
  DeviceJob job;
  job.dropped = {RequestId{4}};
  job.moves = {{RequestId{8}, true, 31, {1, 2}}};
  job.unmerge = true;
  job.merge = AdapterId{5};
  job.mode =
      StepMode{Exec::kUnmerged, LoraKernel::kSgmv, 0.5, HostCopy::kSynced, TakeOver::kLayers};
  job.may_replay = false;
  job.measure_parts = true;
  job.sampling = {0.7, 0.9, 42};
  job.sequences = {{3, {1, 2, 3}, {0, 5}, AdapterId{7}, LoraSite::kHost, true, 99},
                   {0, {4}, {}, kBaseModel, LoraSite::kDevice, false, 0}};
  return job;
}

StepReply some_reply() { return {{1, 2, {3, 4, 5, 12}, 9, {7, 8, 1, 2}, {6, -1}, {0.5f}}, {6, 7}}; }

LoadRequest some_load() { return {{AdapterId{3}, 64, true}, true, 0xabc, "french"}; }

TEST(RankMessages, ComeBackAsTheyWent) {
  Hello hello;
  ASSERT_TRUE(decode_hello(
      {static_cast<std::uint8_t>(Message::kHello), encode_hello(some_hello()).data()}, &hello));
  EXPECT_EQ(encode(hello).data(), encode(some_hello()).data());
  EXPECT_EQ(hello.host, "node7");
  EXPECT_EQ(hello.process, 0x1234567890abcdefu);

  const auto open = decode<OpenRank>(encode(some_open()).data());
  EXPECT_EQ(encode(open).data(), encode(some_open()).data());
  EXPECT_EQ(open.plan.targets, some_open().plan.targets);
  EXPECT_EQ(open.shard.rank, 2);

  const auto job = decode<DeviceJob>(encode(some_job()).data());
  EXPECT_EQ(encode(job).data(), encode(some_job()).data());
  EXPECT_EQ(job.sequences[0].tokens, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(job.sequences[0].lora, LoraSite::kHost);
  EXPECT_EQ(job.moves[0].blocks, (std::vector<BlockIndex>{1, 2}));
  EXPECT_EQ(job.mode.device_share, 0.5);
  EXPECT_FALSE(job.may_replay);

  const auto reply = decode<StepReply>(encode(some_reply()).data());
  EXPECT_EQ(encode(reply).data(), encode(some_reply()).data());
  EXPECT_EQ(reply.result.sampled, some_reply().result.sampled);
  EXPECT_EQ(reply.result.parts.total, 12);

  const auto load = decode<LoadRequest>(encode(some_load()).data());
  EXPECT_EQ(encode(load).data(), encode(some_load()).data());
  EXPECT_TRUE(load.load.folded);
}

struct Decoder {
  const char* name;
  std::vector<std::byte> message;
  std::function<void(Bytes)> decode;
};

std::vector<std::byte> shape_of(const LoraWeights& weights);

std::vector<Decoder> decoders() {
  const auto hello = [](Bytes bytes) {
    Hello out;
    if (!decode_hello({static_cast<std::uint8_t>(Message::kHello), {bytes.begin(), bytes.end()}},
                      &out)) {
      throw SpecError("a damaged message: hello");
    }
  };
  const auto lora = random_adapter(test::small_model(), "a", 4, {"q", "down"}, 1);
  return {
      {"hello", encode_hello(some_hello()).data(), hello},
      {"open", encode(some_open()).data(), [](Bytes b) { decode<OpenRank>(b); }},
      {"job", encode(some_job()).data(), [](Bytes b) { decode<DeviceJob>(b); }},
      {"reply", encode(some_reply()).data(), [](Bytes b) { decode<StepReply>(b); }},
      {"load", encode(some_load()).data(), [](Bytes b) { decode<LoadRequest>(b); }},
      {"shape", shape_of(*lora), [](Bytes b) { decode_shape(b, test::small_model()); }},
  };
}

TEST(RankMessages, OnesCutShortAreRefused) {
  for (const Decoder& each : decoders()) {
    SCOPED_TRACE(each.name);
    EXPECT_NO_THROW(each.decode(each.message));
    for (std::size_t size = 0; size < each.message.size(); ++size) {
      const std::string error =
          test::error_of([&] { each.decode(Bytes(each.message).first(size)); });
      EXPECT_THAT(error, StartsWith("a damaged message: ")) << size;
    }
    std::vector<std::byte> longer = each.message;
    longer.push_back(std::byte{0});
    EXPECT_THAT(test::error_of([&] { each.decode(longer); }), StartsWith("a damaged message: "));
  }
}

// Whatever the bytes are, there is an answer or a SpecError, and no memory for what is only
// announced: 4 billion of anything would not fit.
TEST(RankMessages, DamagedOnesDoNoHarm) {
  RngStream rng(1, "damage");
  for (const Decoder& each : decoders()) {
    SCOPED_TRACE(each.name);
    int refused = 0;
    for (int round = 0; round < 20'000; ++round) {
      std::vector<std::byte> message = each.message;
      for (std::uint64_t i = 0; i <= rng.below(4); ++i) {
        message[rng.below(message.size())] = static_cast<std::byte>(rng.below(256));
      }
      if (rng.below(4) == 0) message.resize(rng.below(message.size()));
      refused += test::error_of([&] { each.decode(message); }).empty() ? 0 : 1;
    }
    EXPECT_GT(refused, 1000);
  }
}

TEST(RankMessages, ATextCannotSteerATerminal) {
  WireWriter out;
  out.text("a\x1b[2Jb\nc");
  std::string read;
  WireReader(out.data()).text(read);
  EXPECT_EQ(read, "a?[2Jb?c");
}

TEST(RankMessages, FramesAreTakenWhenTheyAreWhole) {
  const std::vector<std::byte> bytes = {std::byte{2}, std::byte{0}, std::byte{0}, std::byte{0},
                                        std::byte{9}, std::byte{1}, std::byte{2}, std::byte{3}};
  std::vector<std::byte> buffer;
  for (std::size_t i = 0; i < 6; ++i) {
    buffer.push_back(bytes[i]);
    EXPECT_FALSE(take_frame(&buffer, 100).has_value());
  }
  buffer.push_back(bytes[6]);
  buffer.push_back(bytes[7]);
  const auto frame = take_frame(&buffer, 100);
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->kind, 9);
  EXPECT_EQ(frame->message.size(), 2u);
  EXPECT_EQ(buffer.size(), 1u);
  std::vector<std::byte> huge(5, std::byte{0xff});
  EXPECT_THAT(test::error_of([&] { take_frame(&huge, 100); }), StartsWith("a damaged message: "));
}

// The frame that precedes an adapter's values, as send_content() writes it.
std::vector<std::byte> shape_of(const LoraWeights& weights) {
  WireWriter out;
  WireWriter matrices;
  std::uint32_t count = 0;
  for (int layer = 0; layer < weights.layers(); ++layer) {
    for (int i = 0; i < kLinearLayers; ++i) {
      const LoraMatrices* const pair = weights.find(layer, static_cast<LinearLayer>(i));
      if (pair == nullptr) continue;
      ++count;
      matrices.numbers(layer, static_cast<std::uint8_t>(i), pair->rank, pair->scale);
      for (const Tensor* tensor : {&pair->a, &pair->b}) {
        matrices.numbers(static_cast<std::uint8_t>(tensor->type), tensor->rows, tensor->columns);
      }
    }
  }
  out.numbers(weights.layers(), count);
  out.bytes(matrices.data());
  return out.data();
}

TEST(RankMessages, AnAdaptersDigestIsOfShapesAndValues) {
  const auto one = random_adapter(test::small_model(), "a", 4, {"q", "down"}, 1);
  const auto same = random_adapter(test::small_model(), "b", 4, {"q", "down"}, 1);
  const auto other = random_adapter(test::small_model(), "a", 4, {"q", "down"}, 2);
  const auto elsewhere = random_adapter(test::small_model(), "a", 4, {"k", "down"}, 1);
  EXPECT_EQ(content_digest(*one), content_digest(*same));
  EXPECT_NE(content_digest(*one), content_digest(*other));
  EXPECT_NE(content_digest(*one), content_digest(*elsewhere));
}

}  // namespace
}  // namespace servelab::ranks
