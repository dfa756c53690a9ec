// The gated delta rule and the recurrence of Mamba-2 for one token, for vectors of `kLanes` numbers of one kind of
// processor, of which `kVectors` are summed at a time. A matrix comes from memory once and goes there once: of the delta
// rule some columns are read, and changed while the caches of a core hold them.
//
// No sum depends on the other heads or sequences, so a token's result is the same in every batch.

#pragma once

#include <cstring>

#include "states.h"
#include "vectors.h"

namespace levserve {
namespace {

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));

// A head's numbers of one token, and where its matrix comes from and goes to: null for zeros, and for nowhere.
struct Head {
  const float *query, *key, *value;
  const float* from;
  float *to, *out;
  int64_t key_dim, value_dim;
  float decay, share, alike;  // the last one is the product of query and key
};

// Reads and changes `count` vectors of columns from `first` on. In one pass over what is left of the state: S'q + (k'q) d.
template <class Vector, int count>
INLINE void CorrectColumns(const Head& h, int64_t first) {
  constexpr int64_t lanes = sizeof(Vector) / sizeof(float);
  Vector of_key[count] = {}, of_query[count] = {}, correction[count];
  for (int64_t row = 0; h.from != nullptr && row < h.key_dim; ++row) {
    const float* const from = h.from + row * h.value_dim + first;
    UNROLL for (int i = 0; i < count; ++i) {
      Vector state;
      memcpy(&state, from + i * lanes, sizeof state);
      of_key[i] += state * h.key[row];
      of_query[i] += state * h.query[row];
    }
  }
  UNROLL for (int i = 0; i < count; ++i) {
    Vector value;
    memcpy(&value, h.value + first + i * lanes, sizeof value);
    correction[i] = (value - of_key[i] * h.decay) * h.share;
    const Vector read = of_query[i] * h.decay + correction[i] * h.alike;
    memcpy(h.out + first + i * lanes, &read, sizeof read);
  }
  for (int64_t row = 0; h.to != nullptr && row < h.key_dim; ++row) {
    const int64_t offset = row * h.value_dim + first;
    UNROLL for (int i = 0; i < count; ++i) {
      Vector state = {};
      if (h.from != nullptr) memcpy(&state, h.from + offset + i * lanes, sizeof state);
      state = state * h.decay + correction[i] * h.key[row];
      memcpy(h.to + offset + i * lanes, &state, sizeof state);
    }
  }
}

void Correct(const Correction& c, int64_t seq, int64_t key_head) {
  const int64_t index = seq * c.num_heads + key_head, size = c.key_dim * c.value_dim;
  const float *const query = c.queries + index * c.key_dim, *const key = c.keys + index * c.key_dim;
  const int64_t reads = c.slots.reads[seq], writes = c.slots.writes[seq];
  float alike = 0;
  for (int64_t row = 0; row < c.key_dim; ++row) alike += key[row] * query[row];
  for (int64_t member = 0; member < c.group; ++member) {
    const int64_t own = index * c.group + member, matrix = key_head * c.group + member;
    const auto place = [&](int64_t slot) { return c.states + (slot * c.num_heads * c.group + matrix) * size; };
    const Head head{query,
                    key,
                    c.values + own * c.value_dim,
                    c.slots.IsSlot(reads) ? place(reads) : nullptr,
                    c.slots.IsSlot(writes) ? place(writes) : nullptr,
                    c.out + own * c.value_dim,
                    c.key_dim,
                    c.value_dim,
                    c.decays[own],
                    c.shares[own],
                    alike};
    int64_t column = 0;
    for (; column + kVectors * kLanes <= c.value_dim; column += kVectors * kLanes)
      CorrectColumns<Floats, kVectors>(head, column);
    for (; column + kLanes <= c.value_dim; column += kLanes) CorrectColumns<Floats, 1>(head, column);
    for (; column < c.value_dim; ++column) CorrectColumns<float, 1>(head, column);
  }
}

// A row of a head of Mamba-2: null for zeros, and for nowhere.
struct StateRow {
  const float *writes, *reads, *from;
  float* to;
  float decay, input;

  template <class Vector>
  INLINE Vector Change(int64_t column) const {
    Vector state = {}, write, read;
    if (from != nullptr) memcpy(&state, from + column, sizeof state);
    memcpy(&write, writes + column, sizeof write);
    memcpy(&read, reads + column, sizeof read);
    state = state * decay + write * input;
    if (to != nullptr) memcpy(to + column, &state, sizeof state);
    return state * read;
  }

  float Read(int64_t state_dim) const {
    Floats sums[kVectors] = {};
    int64_t column = 0;
    for (; column + kVectors * kLanes <= state_dim; column += kVectors * kLanes)
      UNROLL for (int i = 0; i < kVectors; ++i) sums[i] += Change<Floats>(column + i * kLanes);
    for (; column + kLanes <= state_dim; column += kLanes) sums[0] += Change<Floats>(column);
    float rest = 0;
    for (; column < state_dim; ++column) rest += Change<float>(column);
    for (int i = 1; i < kVectors; ++i) sums[0] += sums[i];
    for (int i = 0; i < kLanes; ++i) rest += sums[0][i];
    return rest;
  }
};

void Add(const Addition& a, int64_t seq, int64_t group) {
  const int64_t index = seq * a.num_groups + group, size = a.head_dim * a.state_dim;
  const int64_t reads = a.slots.reads[seq], writes = a.slots.writes[seq];
  for (int64_t head = 0; head < a.heads; ++head) {
    const int64_t own = index * a.heads + head, matrix = group * a.heads + head;
    const auto place = [&](int64_t slot) { return a.states + (slot * a.num_groups * a.heads + matrix) * size; };
    const float* const from = a.slots.IsSlot(reads) ? place(reads) : nullptr;
    float* const to = a.slots.IsSlot(writes) ? place(writes) : nullptr;
    for (int64_t row = 0; row < a.head_dim; ++row) {
      const int64_t offset = row * a.state_dim;
      const StateRow state{a.writes + index * a.state_dim,
                           a.reads + index * a.state_dim,
                           from == nullptr ? nullptr : from + offset,
                           to == nullptr ? nullptr : to + offset,
                           a.decays[own],
                           a.inputs[own * a.head_dim + row]};
      a.out[own * a.head_dim + row] = state.Read(a.state_dim);
    }
  }
}

}  // namespace
}  // namespace levserve
