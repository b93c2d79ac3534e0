// What recurrences share (compute.Recurrence).
#include "rt.cuh"

// convolved is a sum plus those of a channel's inputs by their weights: the ones of a window, the
// earliest first, then v. It moves the window on.
DI float convolved(float* window, const float* w, int channels, int kernel, int c, float s, float v) {
  for (int j = 0; j < kernel - 1; j++) {
    float before = window[j * channels + c];
    s += w[j * channels + c] * before;
    if (j > 0) window[(j - 1) * channels + c] = before;
  }
  s += w[(kernel - 1) * channels + c] * v;
  if (kernel > 1) window[(kernel - 2) * channels + c] = v;
  return s;
}
