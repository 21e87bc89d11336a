// A tile of a matrix product, held in registers by a block of threads.
//
// Each of the Rows * Cols / 16 threads holds 4 x 4 sums: a step of depth 16 reads 8 vectors of four
// from shared memory for 256 multiply-adds. The tensor-core twin has a warp hold 16 x 32 sums;
// products of float16 and bfloat16 are exact in float32, so both give the same up to the order of
// additions.
#pragma once

#include "../base/numbers.cuh"

namespace lapkernels::cuda {

constexpr int kDepth = 16;

template <int Rows, int Cols>
struct Shape {
  static constexpr int rows = Rows, cols = Cols, threads = Rows * Cols / 16;
};
using Square = Shape<64, 64>;
// For few rows; it reads the other factor four times as often.
using Narrow = Shape<16, 64>;

// One step of a matrix factor in shared memory, padded against bank conflicts.
template <class Stored, int Lanes>
struct Panel {
  static constexpr int length = Lanes + (sizeof(Stored) == 2 ? 8 : 4);
  Four<Stored> data[kDepth][length / 4];

  __device__ Stored& at(int k, int lane) { return data[k][lane / 4].at[lane % 4]; }
  __device__ const Four<Stored>& four(int k, int lane) const { return data[k][lane / 4]; }
  __device__ const Stored* start(int lane) const { return data[0][lane / 4].at; }
};

// A tile in shared memory, for what follows the product.
template <class S, class Shape>
struct Result {
  static constexpr int length = Shape::cols + 4;
  S at[Shape::rows][length];
};

template <class Stored, class Shape>
struct ScalarTile {
  using S = SumOf<Stored>;
  S sum[4][4];

  __device__ static int row() { return threadIdx.x / (Shape::cols / 4) * 4; }
  __device__ static int col() { return threadIdx.x % (Shape::cols / 4) * 4; }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 16; ++i) sum[i / 4][i % 4] = 0;
  }

  __device__ void add_square(const ScalarTile& other) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const S value = other.sum[i / 4][i % 4];
      sum[i / 4][i % 4] += value * value;
    }
  }

  // Adds the product of a step: a[k][row] and b[k][col].
  template <class A, class B>
  __device__ void multiply(const A& a, const B& b) {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const Four<Stored> x = a.four(k, row()), y = b.four(k, col());
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += widen(x.at[i]) * widen(y.at[j]);
    }
  }

  __device__ void store(Result<S, Shape>& result) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) result.at[row() + i / 4][col() + i % 4] = sum[i / 4][i % 4];
  }
};

#ifdef __CUDACC__
// Element and fragment types of the tensor cores; sm_75 has none for bfloat16.
template <class Stored>
struct TensorCore {
  static constexpr bool exists = false;
};
#if __CUDA_ARCH__ >= 700
template <>
struct TensorCore<Half> {
  static constexpr bool exists = true;
  using type = __half;
};
#endif
#if __CUDA_ARCH__ >= 800
template <>
struct TensorCore<BFloat16> {
  static constexpr bool exists = true;
  using type = __nv_bfloat16;
};
#endif

template <class Stored, class Shape>
struct TensorTile {
  using Element = typename TensorCore<Stored>::type;
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sum[2];

  __device__ static int row() { return threadIdx.x / 32 / (Shape::cols / 32) * 16; }
  __device__ static int col() { return threadIdx.x / 32 % (Shape::cols / 32) * 32; }

  __device__ void clear() {
    for (auto& part : sum) nvcuda::wmma::fill_fragment(part, 0.0f);
  }

  __device__ void add_square(const TensorTile& other) {
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int i = 0; i < sum[part].num_elements; ++i)
        sum[part].x[i] += other.sum[part].x[i] * other.sum[part].x[i];
  }

  template <class A, class B>
  __device__ void multiply(const A& a, const B& b) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, Element, col_major> x;
    load_matrix_sync(x, reinterpret_cast<const Element*>(a.start(row())), A::length);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      fragment<matrix_b, 16, 16, 16, Element, row_major> y;
      load_matrix_sync(y, reinterpret_cast<const Element*>(b.start(col() + 16 * part)), B::length);
      mma_sync(sum[part], x, y, sum[part]);
    }
  }

  __device__ void store(Result<float, Shape>& result) const {
#pragma unroll
    for (int part = 0; part < 2; ++part)
      nvcuda::wmma::store_matrix_sync(&result.at[row()][col() + 16 * part], sum[part],
                                      result.length, nvcuda::wmma::mem_row_major);
  }
};

template <class Stored, class Shape, bool tensor>
struct TileChoice {
  using type = ScalarTile<Stored, Shape>;
};
template <class Stored, class Shape>
struct TileChoice<Stored, Shape, true> {
  using type = TensorTile<Stored, Shape>;
};
template <class Stored, class Shape>
using Tile = typename TileChoice<Stored, Shape, TensorCore<Stored>::exists>::type;
#else
template <class Stored, class Shape>
using Tile = ScalarTile<Stored, Shape>;
#endif

}  // namespace lapkernels::cuda
