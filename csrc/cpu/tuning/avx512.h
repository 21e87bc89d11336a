// Constants of the kernels with AVX-512, measured on AMD EPYC (Zen 4) and Intel Ice Lake in 2026.

namespace tuning {

// Register tiles, of 32 registers: rows x vectors of an outer product, columns of three dot rows.
constexpr int kOuterRows = 8, kOuterVectors = 3, kDotColumns = 6;

// Sizes that keep operands in a cache: bytes of padded images and of transposed rows, positions of
// a panel of these; values of a block of a weight; bytes of Winograd's tiles, and of windows that
// are held for other columns.
constexpr int64_t kImageBytes = 128 << 10, kPanelBytes = 512 << 10, kPanelPositions = 256;
constexpr int64_t kBlockValues = 16384, kLeastBlockValues = 4096;
constexpr int64_t kTileBytes = 224 << 10, kHeldBytes = 128 << 10;

// Instructions: of a product with a panel of one, two or three vectors of rows, where few wait for
// broadcasts; to copy and to transpose an entry; of a product with a vector that lies across cache
// lines; to store a sum.
constexpr double kPanelCost[] = {1.5, 2.2, 3.2};
constexpr double kCopied = 0.3, kTransposed = 1.2, kShifted = 2.6, kStored = 14;
// Of Winograd: what a lone vector waits, and what a tile's transforms take.
constexpr double kLoneVector = 1.7, kTileCost = 1;

}  // namespace tuning
