#pragma once

#include <cstdint>

namespace levserve {

// The slots that the sequences of a decode step read and write, each one token. No two write the same slot, and none
// reads a slot that another one writes, so a state is changed in place where a sequence reads what it writes.
struct Slots {
  const int32_t *reads, *writes, *num_tokens;  // [seq]; negative reads begin with zeros; 0 tokens are padding
  int64_t num_slots;

  bool IsSlot(int64_t slot) const { return slot >= 0 && slot < num_slots; }
};

// What tokens do to the matrices of recurrent heads; see `run_delta`. Value heads of a group share a key head.
struct Correction {
  Slots slots;
  const float *queries, *keys;    // [seq, key_head, key_dim]
  const float* values;            // [seq, key_head, group, value_dim]
  const float *decays, *shares;   // [seq, key_head, group]: what a state is multiplied by, and a correction
  float* states;                  // [slot, key_head, group, key_dim, value_dim]
  float* out;                     // as the values
  int64_t num_seqs, num_heads, group, key_dim, value_dim;
};

// What tokens add to the matrices of heads of Mamba-2; see `run_ssd`. The heads of a group share what is written and read.
struct Addition {
  Slots slots;
  const float* inputs;           // [seq, group, head, head_dim]
  const float *writes, *reads;   // [seq, group, state_dim]
  const float* decays;           // [seq, group, head]: what a state is multiplied by
  float* states;                 // [slot, group, head, head_dim, state_dim]
  float* out;                    // as the inputs
  int64_t num_seqs, num_groups, heads, head_dim, state_dim;
};

// Both read and change the matrices of one key head, or of one group, of a sequence that has a token.
struct StateKernels {
  void (*correct)(const Correction& c, int64_t seq, int64_t head);
  void (*add)(const Addition& a, int64_t seq, int64_t group);
};

extern const StateKernels kAvx2States, kAvx512States, kNeonStates;

extern const StateKernels* state_kernels;  // of this processor; null if there are none

}  // namespace levserve
