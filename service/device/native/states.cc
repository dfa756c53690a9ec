// The custom calls of a decode step's recurrent layers: one token of each sequence, whose state is changed in place.

#include "states.h"

#include <algorithm>
#include <cstring>

#include "call.h"
#include "parallel.h"

namespace levserve {
namespace {

constexpr int64_t kChannels = 4096;  // that a thread convolves at a time

const float* Floats(const Buffer* buffer) { return static_cast<const float*>(buffer->data); }

Slots SlotsOf(Buffer* const* arguments, int64_t num_slots) {
  const auto integers = [&](int i) { return static_cast<const int32_t*>(arguments[i]->data); };
  return {integers(0), integers(1), integers(2), num_slots};
}

void CorrectBlock(const void* data, int64_t block) {
  const Correction& c = *static_cast<const Correction*>(data);
  const int64_t seq = block / c.num_heads, head = block % c.num_heads;
  if (c.slots.num_tokens[seq] > 0) {
    state_kernels->correct(c, seq, head);
  } else {
    const int64_t size = c.group * c.value_dim;
    memset(c.out + block * size, 0, size * sizeof(float));
  }
}

void AddBlock(const void* data, int64_t block) {
  const Addition& a = *static_cast<const Addition*>(data);
  const int64_t seq = block / a.num_groups, group = block % a.num_groups;
  if (a.slots.num_tokens[seq] > 0) {
    state_kernels->add(a, seq, group);
  } else {
    const int64_t size = a.heads * a.head_dim;
    memset(a.out + block * size, 0, size * sizeof(float));
  }
}

// A causal convolution of each channel by itself.
struct Convolution {
  Slots slots;
  const float *inputs, *taps;  // [seq, channel], [channel, tap], of which the last is the token's own
  float* states;               // [tap before the last, slot, channel], oldest first
  float* out;                  // as the inputs
  int64_t num_channels, num_before;

  int64_t CountBlocks() const { return (num_channels + kChannels - 1) / kChannels; }

  static void Run(const void* data, int64_t block) {
    const Convolution& c = *static_cast<const Convolution*>(data);
    const int64_t seq = block / c.CountBlocks(), first = block % c.CountBlocks() * kChannels;
    c.Convolve(seq, first, std::min(first + kChannels, c.num_channels));
  }

  void Convolve(int64_t seq, int64_t first, int64_t after) const {
    const int64_t row = seq * num_channels, reads = slots.reads[seq], writes = slots.writes[seq];
    if (slots.num_tokens[seq] <= 0) {
      memset(out + row + first, 0, (after - first) * sizeof(float));
      return;
    }
    const bool begins = !slots.IsSlot(reads), keeps = slots.IsSlot(writes);
    const int64_t earlier = slots.num_slots * num_channels;  // from one of the last inputs to the next
    for (int64_t channel = first; channel < after; ++channel) {
      const float* const weights = taps + channel * (num_before + 1);
      float sum = 0;
      for (int64_t tap = 0; tap < num_before; ++tap) {
        const float input = begins ? 0 : states[tap * earlier + reads * num_channels + channel];
        sum += input * weights[tap];
        // Its place is known to be free: what was there has been read.
        if (keeps && tap > 0) states[(tap - 1) * earlier + writes * num_channels + channel] = input;
      }
      out[row + channel] = sum + inputs[row + channel] * weights[num_before];
      if (keeps && num_before > 0)
        states[(num_before - 1) * earlier + writes * num_channels + channel] = inputs[row + channel];
    }
  }
};

}  // namespace

extern "C" {

// (reads, writes, num_tokens: int32 [seq], queries, keys: float32 [seq, key_head, key_dim],
//  values: float32 [seq, key_head, group, value_dim], decays, shares: float32 [seq, key_head, group],
//  states: float32 [slot, key_head, group, key_dim, value_dim]) -> (float32 as the values, the states)
// The states are updated in place.
EXPORT Error* levserve_correct_states(const CallFrame* call) {
  if (AnswersVersion(*call)) return nullptr;
  if (state_kernels == nullptr) return Fail(*call, kInvalidArgument, "this processor has no code for states");
  Buffer* const* const arguments = call->arguments.buffers;
  const Buffer &keys = *arguments[4], &values = *arguments[5], &states = *call->results.buffers[1];
  const Correction correction{SlotsOf(arguments, states.dims[0]),
                              Floats(arguments[3]),
                              Floats(&keys),
                              Floats(&values),
                              Floats(arguments[6]),
                              Floats(arguments[7]),
                              static_cast<float*>(states.data),
                              static_cast<float*>(call->results.buffers[0]->data),
                              values.dims[0],
                              values.dims[1],
                              values.dims[2],
                              keys.dims[2],
                              values.dims[3]};
  ParallelBlocks(*call, correction.num_seqs * correction.num_heads, CorrectBlock, &correction);
  return nullptr;
}

// (reads, writes, num_tokens: int32 [seq], inputs: float32 [seq, group, head, head_dim],
//  what is written, what is read: float32 [seq, group, state_dim], decays: float32 [seq, group, head],
//  states: float32 [slot, group, head, head_dim, state_dim]) -> (float32 as the inputs, the states)
// The states are updated in place.
EXPORT Error* levserve_add_states(const CallFrame* call) {
  if (AnswersVersion(*call)) return nullptr;
  if (state_kernels == nullptr) return Fail(*call, kInvalidArgument, "this processor has no code for states");
  Buffer* const* const arguments = call->arguments.buffers;
  const Buffer &inputs = *arguments[3], &writes = *arguments[4], &states = *call->results.buffers[1];
  const Addition addition{SlotsOf(arguments, states.dims[0]),
                          Floats(&inputs),
                          Floats(&writes),
                          Floats(arguments[5]),
                          Floats(arguments[6]),
                          static_cast<float*>(states.data),
                          static_cast<float*>(call->results.buffers[0]->data),
                          inputs.dims[0],
                          inputs.dims[1],
                          inputs.dims[2],
                          inputs.dims[3],
                          writes.dims[2]};
  ParallelBlocks(*call, addition.num_seqs * addition.num_groups, AddBlock, &addition);
  return nullptr;
}

// (reads, writes, num_tokens: int32 [seq], inputs: float32 [seq, channel], taps: float32 [channel, tap],
//  states: float32 [tap before the last, slot, channel]) -> (float32 as the inputs, the states)
// The states are updated in place.
EXPORT Error* levserve_convolve_states(const CallFrame* call) {
  if (AnswersVersion(*call)) return nullptr;
  Buffer* const* const arguments = call->arguments.buffers;
  const Buffer &inputs = *arguments[3], &states = *call->results.buffers[1];
  const Convolution convolution{SlotsOf(arguments, states.dims[1]),
                                Floats(&inputs),
                                Floats(arguments[4]),
                                static_cast<float*>(states.data),
                                static_cast<float*>(call->results.buffers[0]->data),
                                inputs.dims[1],
                                states.dims[0]};
  ParallelBlocks(*call, inputs.dims[0] * convolution.CountBlocks(), Convolution::Run, &convolution);
  return nullptr;
}

}  // extern "C"
}  // namespace levserve
