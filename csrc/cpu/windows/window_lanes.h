// Windows of many lanes: tensors [V, L, C, z, y, x] whose samples are the lanes of the vectors.
//
// In memory a window's entries lie a power of two apart, all on the same few cache sets. So a chunk
// of lanes is copied first, to[group][row][width], where a row is one entry of one channel and the
// last group is filled up with zeros: no tile needs to know how many lanes there are.

// Room for a chunk, on a cache line and with any content.
template <class T>
class Pack {
 public:
  explicit Pack(int64_t count)
      : storage_(std::make_unique_for_overwrite<T[]>(count + 64 / sizeof(T))),
        data_(storage_.get()) {
    data_ += (64 - reinterpret_cast<uintptr_t>(data_) % 64) % 64 / sizeof(T);
  }
  T* data() { return data_; }

 private:
  std::unique_ptr<T[]> storage_;
  T* data_;
};

// One row of `lanes` lanes: to[g * pitch + i] (+)= transform(from[(g * width + i) * stride]).
template <bool Add, class T, class Transform>
inline void pack_lanes(T* to, int64_t pitch, int64_t width, const T* from, int64_t stride,
                       int64_t lanes, Transform transform) {
  for (; lanes > 0; lanes -= width, to += pitch, from += width * stride) {
    if (stride == 1 && lanes >= width) {
      for (int64_t i = 0; i < width; i += kWidth<T>) {
        const Reg<T> value = transform(load(from + i));
        store(to + i, Add ? load(to + i) + value : value);
      }
      continue;
    }
    const int64_t whole = std::min(lanes, width);
    for (int64_t i = 0; i < whole; ++i) {
      const T value = transform(from[i * stride]);
      to[i] = Add ? to[i] + value : value;
    }
    if (!Add) std::fill(to + whole, to + width, T(0));
  }
}

// How `count` things are dealt out to blocks of at most `most`, as evenly as possible.
struct Cut {
  int64_t count, blocks;
  Cut(int64_t count_, int64_t most) : count(count_), blocks(ceil_div(count_, most)) {}
  int64_t begin(int64_t block) const { return count * block / blocks; }
  int64_t size(int64_t block) const { return begin(block + 1) - begin(block); }
};
