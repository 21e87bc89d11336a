// Windows of many lanes: tensors [V, L, C, z, y, x] whose samples are the lanes of the vectors.
//
// In memory a window's entries lie a power of two apart, all in the same few cache sets. So a chunk
// of lanes is packed first, as groups of `width` lanes, `pitch` apart. The last group is filled up
// with zeros: no tile needs to know how many lanes there are.
struct LaneChunk {
  int64_t first, count;  // of the tensor's lanes
  int64_t width, pitch;
};

// to[g * pitch + i] = lane g * width + i, for lanes that are `stride` apart.
template <class T>
void pack_lanes(T* to, const T* from, int64_t stride, const LaneChunk& lanes) {
  const int64_t width = lanes.width;
  for (int64_t left = lanes.count; left > 0; left -= width, to += lanes.pitch) {
    const int64_t here = std::min(left, width);
    copy_row(to, from, here, stride, Identity{});
    std::fill(to + here, to + width, T(0));
    from += width * stride;
  }
}

// Entry (c, z, y, x) of column v of a window, for channels c of [c0, c0 + channels) and x of
// [x0, x0 + nx), goes to row c * channel_step + ((z * ny + y) * nx + x) * entry_step of each group.
// Entries beside the window are left as they are.
template <class T>
void pack_window(T* to, const Grid<const T>& s, int64_t v, int64_t c0, int64_t channels, int64_t x0,
                 int64_t nx, int64_t channel_step, int64_t entry_step, const LaneChunk& lanes) {
  const int64_t begin = std::max<int64_t>(0, -x0), end = std::min(nx, s.size[5] - x0);
  for (int64_t z = 0; z < s.size[3]; ++z)
    for (int64_t y = 0; y < s.size[4]; ++y)
      for (int64_t x = begin; x < end; ++x)
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t row = c * channel_step + ((z * s.size[4] + y) * nx + x) * entry_step;
          pack_lanes(to + row * lanes.width,
                     s.data + v * s.stride[0] + lanes.first * s.stride[1] + (c0 + c) * s.stride[2] +
                         z * s.stride[3] + y * s.stride[4] + (x0 + x) * s.stride[5],
                     s.stride[1], lanes);
        }
}
