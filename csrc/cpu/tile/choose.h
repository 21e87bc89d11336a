// Blocks of evenly shared sizes, and the instance of a register tile for sizes known at run time.

// `count` things in blocks of at most `most`, as even as possible.
struct Cut {
  int64_t count, blocks;
  Cut(int64_t count_, int64_t most) : count(count_), blocks(ceil_div(count_, most)) {}
  int64_t begin(int64_t block) const { return count * block / blocks; }
  int64_t size(int64_t block) const { return begin(block + 1) - begin(block); }
  int64_t largest() const { return ceil_div(count, std::max<int64_t>(1, blocks)); }
};

// Rows of a tile, at most, and columns for so many rows.
constexpr int kTileRows = std::size(tuning::kTileColumns);
constexpr int tile_columns(int64_t rows) { return tuning::kTileColumns[rows - 1]; }

// make<R, C>() for R = rows and C = columns; `make` captures nothing.
template <class Make>
auto tile_for(int64_t rows, int64_t columns, Make) {
  constexpr int kMost = tile_columns(1);
  static constexpr auto tiles = []<int... i>(std::integer_sequence<int, i...>) {
    return std::array{
        Make{}.template
        operator()<i / kMost + 1, std::min(i % kMost + 1, tile_columns(i / kMost + 1))>()...};
  }(std::make_integer_sequence<int, kTileRows * kMost>{});
  return tiles[(rows - 1) * kMost + columns - 1];
}
