// Weights in the layouts of blocks.

// A block of the contiguous weight [A, B / groups, k], laid out like the block's values. What lies
// between them is not written.
template <class T>
void gather_weight(T* to, const T* weight, const Correlation<T>& p, const Block& block,
                   const Layout& layout) {
  const int64_t pitch = p.channels * p.kernel, width = block.channels() * p.kernel;
  const T* from = weight + (block.group * p.rows + block.a0) * pitch + block.b0 * p.kernel;
  if (layout.row == 1) return interleave(to, layout.tap, from, 1, pitch, block.rows(), width);
  for (int64_t r = 0; r < block.rows(); ++r, to += layout.row, from += pitch)
    if (layout.channel == 1)
      interleave(to, layout.tap, from, 1, p.kernel, block.channels(), p.kernel);
    else
      std::copy(from, from + width, to);
}

// The whole weight, block after block, `size` entries each, in the blocks' own layout.
template <class T>
Scratch<T> gather_weights(const Context& context, const T* weight, const Correlation<T>& p,
                          const std::vector<Block>& blocks, const Layout& layout, int64_t size) {
  Scratch<T> all(size * blocks.size());
  context.parallel_for(blocks.size(), [&](int64_t b) {
    gather_weight(all.data() + b * size, weight, p, blocks[b], layout);
  });
  return all;
}

// out <- decay * out + scale * value on a strided weight [A, B, kz, ky, kx], for one block.
template <class T>
void update_weight(const Grid<T>& out, Update update, const Correlation<T>& p, const Block& block,
                   const T* value, const Layout& layout) {
  std::vector<int64_t> taps;
  for (int64_t z = 0; z < p.taps.kernel[0]; ++z)
    for (int64_t y = 0; y < p.taps.kernel[1]; ++y)
      for (int64_t x = 0; x < p.taps.kernel[2]; ++x)
        taps.push_back(z * out.stride[3] + y * out.stride[4] + x * out.stride[5]);
  bool flat = out.stride[2] == p.kernel;
  for (int64_t k = 0; k < p.kernel; ++k) flat = flat && taps[k] == k;
  // Rows are brought into the order [row][channel][tap], some at a time.
  constexpr int64_t kRowsAtOnce = 8;
  const int64_t width = block.channels() * p.kernel;
  std::vector<T> lines(kRowsAtOnce * width);
  const T decay = update.decay, scale = update.scale;
  for (int64_t first = 0; first < block.rows(); first += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, block.rows() - first);
    const T* from = value + first * layout.row;
    if (layout.row == 1)
      interleave(lines.data(), width, from, 1, layout.tap, width, rows);
    else
      for (int64_t r = 0; r < rows; ++r)
        interleave(lines.data() + r * width, p.kernel, from + r * layout.row, layout.channel,
                   layout.tap, p.kernel, block.channels());
    for (int64_t r = 0; r < rows; ++r) {
      const T* line = lines.data() + r * width;
      T* to = out.data + (block.group * p.rows + block.a0 + first + r) * out.stride[1] +
              block.b0 * out.stride[2];
      auto put = [&](T& at, T term) { at = (decay == 0 ? T(0) : decay * at) + scale * term; };
      if (flat)
        for (int64_t i = 0; i < width; ++i) put(to[i], line[i]);
      else
        for (int64_t b = 0; b < block.channels(); ++b)
          for (int64_t k = 0; k < p.kernel; ++k)
            put(to[b * out.stride[2] + taps[k]], line[b * p.kernel + k]);
    }
  }
}
