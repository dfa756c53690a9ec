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

// Reads and changes the matrices of one key head of a sequence that has a token.
using CorrectHead = void (*)(const Correction& c, int64_t seq, int64_t head);

extern const CorrectHead kAvx2Correct, kAvx512Correct, kNeonCorrect;

extern CorrectHead correct_head;  // of this processor; null if there is none

}  // namespace levserve
