// Messages between ranks: they come back as they went, and nothing else does any harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "engine/backend/ranks/adapter_content.h"
#include "engine/backend/ranks/hello.h"
#include "engine/backend/ranks/messages.h"
#include "engine/core/rng.h"
#include "tests/support/error_of.h"

namespace servelab::ranks {
namespace {

using Bytes = std::span<const std::byte>;
using ::testing::StartsWith;

ModelConfig small_model() {
  ModelConfig model;
  model.name = "small";
  model.layers = 2;
  model.hidden = 32;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 16;
  model.ffn = 64;
  model.vocab = 50;
  return model;
}

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

StepRequest some_step() {
  StepRequest step;
  step.mode = StepMode{Exec::kUnmerged, LoraKernel::kSgmv, 0.5, HostCopy::kSynced};
  step.mode.may_replay = false;
  step.mode.measure_parts = true;
  step.sampling = {0.7, 0.9, 42};
  step.adapters = {{7, 0x1111}, {9, 0x2222}};
  step.slices = {{3, {1, 2, 3}, {0, 5}, 7, true, 99}, {0, {4}, {}, 0, false, 0}};
  return step;
}

TEST(RankMessages, ComeBackAsTheyWent) {
  Hello hello;
  ASSERT_TRUE(decode_hello(
      {static_cast<std::uint8_t>(Message::kHello), encode(some_hello()).data()}, &hello));
  EXPECT_EQ(encode(hello).data(), encode(some_hello()).data());
  EXPECT_EQ(hello.host, "node7");
  EXPECT_EQ(hello.process, 0x1234567890abcdefu);

  const OpenRank open = decode_open(encode(some_open()).data());
  EXPECT_EQ(encode(open).data(), encode(some_open()).data());
  EXPECT_EQ(open.plan.targets, some_open().plan.targets);
  EXPECT_EQ(open.shard.rank, 2);

  const StepRequest step = decode_step(encode(some_step()).data());
  EXPECT_EQ(encode(step).data(), encode(some_step()).data());
  EXPECT_EQ(step.slices[0].tokens, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(step.mode.device_share, 0.5);
  EXPECT_FALSE(step.mode.may_replay);

  const StepReply reply = {{1, 2, 3, 4}, {5, -1}, {6, 7}};
  const StepReply replied = decode_step_reply(encode(reply).data());
  EXPECT_EQ(encode(replied).data(), encode(reply).data());
  EXPECT_EQ(replied.sampled, reply.sampled);

  const PackRequest pack = {3, 64, false, true, 0xabc, "french"};
  EXPECT_EQ(encode(decode_pack(encode(pack).data())).data(), encode(pack).data());
  const CopyRequest copy = {8, 31, {1, 2}};
  EXPECT_EQ(encode(decode_copy(encode(copy).data())).data(), encode(copy).data());
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
  const auto lora = random_adapter(small_model(), "a", 4, {"q", "down"}, 1);
  return {
      {"hello", encode(some_hello()).data(), hello},
      {"open", encode(some_open()).data(), [](Bytes b) { decode_open(b); }},
      {"step", encode(some_step()).data(), [](Bytes b) { decode_step(b); }},
      {"reply", encode(StepReply{{1, 2, 3, 4}, {5}, {6, 7}}).data(),
       [](Bytes b) { decode_step_reply(b); }},
      {"pack", encode(PackRequest{3, 64, false, true, 5, "x"}).data(),
       [](Bytes b) { decode_pack(b); }},
      {"copy", encode(CopyRequest{8, 31, {1, 2}}).data(), [](Bytes b) { decode_copy(b); }},
      {"shape", shape_of(*lora), [](Bytes b) { decode_shape(b, small_model()); }},
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
  EXPECT_EQ(WireReader(out.data()).text(), "a?[2Jb?c");
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
  out.i32(weights.layers());
  WireWriter matrices;
  std::uint32_t count = 0;
  for (int layer = 0; layer < weights.layers(); ++layer) {
    for (int i = 0; i < kLinearLayers; ++i) {
      const LoraMatrices* const pair = weights.find(layer, static_cast<LinearLayer>(i));
      if (pair == nullptr) continue;
      ++count;
      matrices.i32(layer);
      matrices.u8(static_cast<std::uint8_t>(i));
      matrices.i32(pair->rank);
      matrices.f64(static_cast<double>(pair->scale));
      for (const Tensor* tensor : {&pair->a, &pair->b}) {
        matrices.u8(static_cast<std::uint8_t>(tensor->type));
        matrices.i32(tensor->rows);
        matrices.i32(tensor->columns);
      }
    }
  }
  out.u32(count);
  out.bytes(matrices.data());
  return out.data();
}

TEST(RankMessages, AnAdaptersDigestIsOfShapesAndValues) {
  const auto one = random_adapter(small_model(), "a", 4, {"q", "down"}, 1);
  const auto same = random_adapter(small_model(), "b", 4, {"q", "down"}, 1);
  const auto other = random_adapter(small_model(), "a", 4, {"q", "down"}, 2);
  const auto elsewhere = random_adapter(small_model(), "a", 4, {"k", "down"}, 1);
  EXPECT_EQ(content_digest(*one), content_digest(*same));
  EXPECT_NE(content_digest(*one), content_digest(*other));
  EXPECT_NE(content_digest(*one), content_digest(*elsewhere));
}

}  // namespace
}  // namespace servelab::ranks
