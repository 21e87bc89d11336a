// Constants of the kernels with AVX2, measured on AMD EPYC in 2026; the costs of strategies on Zen
// 5 in November 2026.

namespace tuning {

// Register tiles, of 16 registers: rows x vectors of an outer product, columns of three dot rows.
constexpr int kOuterRows = 4, kOuterVectors = 3, kDotColumns = 4;
// Columns of a register tile of 1 to 4 rows: sums, a column and the rows fill the registers.
constexpr int kTileColumns[] = {8, 6, 4, 3};

// Sizes that keep operands in a cache: bytes of padded images and of transposed rows, positions of
// a panel of these; values of a block of a weight; bytes of Winograd's tiles, and of windows that
// are held for other columns.
constexpr int64_t kImageBytes = 128 << 10, kPanelBytes = 512 << 10, kPanelPositions = 256;
constexpr int64_t kBlockValues = 16384, kLeastBlockValues = 4096;
constexpr int64_t kTileBytes = 224 << 10, kHeldBytes = 128 << 10;

// Second moments: bytes of a chunk's panels (second-level cache), also where each of several shares
// has its own, and of a chunk of images for products that taps share; vectors of one product (two
// panels in the first-level cache); channels from which on taps share products.
// Gram matrices: bytes of all columns' values at a time (first-level cache).
constexpr int64_t kChunkBytes = 320 << 10, kShareBytes = 96 << 10, kLagBytes = 512 << 10;
constexpr int64_t kGramBytes = 24 << 10;
constexpr int64_t kProductDepth = 256, kLagPositions = 128, kLagChannels = 8;

// Costs of strategies, about instructions: of a product with a panel of one, two or three vectors
// of rows, where few wait for broadcasts; to copy and to transpose an entry; of a product with a
// vector that lies across cache lines; to store a sum.
constexpr double kPanelCost[] = {1.25, 2.2, 3.2};
constexpr double kCopied = 0.3, kTransposed = 0.8, kShifted = 1.2, kStored = 14;

// Winograd: rows or channels that are broadcast and lie next to each other (with AVX-512 a cache
// line would hold those of two steps); what a lone vector waits, and what a tile's transforms take.
constexpr int kWinogradPack = 8;
constexpr double kLoneVector = 1, kTileCost = 0.9;

// Sums over windows (ops/window_squared_sum.h): rows and channels of a block of the weight, the
// bytes of a tile's operands (first-level cache) and of a chunk of lanes (second-level), vectors of
// lanes of a chunk, and tasks that blocks of a small weight are split into.
constexpr int64_t kWindowBlock = 16, kWindowTileBytes = 20 << 10, kWindowChunkBytes = 320 << 10;
constexpr int64_t kWindowVectors = 16, kWindowTasks = 16;

// Pulls of windows (ops/window_pull.h): packed bytes and groups of lanes of a chunk.
constexpr int64_t kPullBytes = 192 << 10, kPullGroups = 8;

// Convolutions: bytes of padded arrays, and positions of a row block at least; sums of a tile below
// which rows go together, and vectors of what goes together.
constexpr int64_t kConvolutionBytes = 192 << 10, kConvolutionPositions = 256;
constexpr int64_t kShortSums = 8, kShortVectors = 12;

// Rows of the weight of a linear layer that are packed at a time, of so many panels.
constexpr int64_t kLinearRows = 64, kLinearPanels = 5;

// Sparse columns (ops/sparse_*.h): positions that a tile of the weight visits in turn, output
// channels of a block, and tasks that few blocks are split into.
constexpr int64_t kSparsePositions = 256, kSparseRows = 16, kSparseTasks = 8;

}  // namespace tuning
