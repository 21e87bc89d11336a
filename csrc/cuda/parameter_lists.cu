#include "parameter_lists.cuh"

#include <cmath>
#include <vector>

#include "base/launch.h"
#include "ops.h"

namespace lapkernels::cuda {

template <class T>
static Entry<T> entry(T* out, const T* a, const T* b, int64_t size) {
  const bool fours = is_vector(out) && is_vector(a) && is_vector(b);
  return {out, a, b, size, fours};
}

// Runs a list's work in as many launches as it has times 64 parameters.
template <class T>
static void run_lists(const Context& context, ListWork work, const std::vector<Entry<T>>& entries,
                      double p, double q, double* sums) {
  for (size_t begin = 0; begin < entries.size();) {
    Lists<T> task{};
    task.work = work;
    task.p = static_cast<SumOf<T>>(p);
    task.q = static_cast<SumOf<T>>(q);
    task.sums = sums;
    int64_t blocks = 0;
    for (; begin < entries.size() && task.count < kEntries; ++begin) {
      if (entries[begin].size == 0) continue;
      task.first_block[task.count] = static_cast<int>(blocks);
      task.entry[task.count++] = entries[begin];
      blocks += ceil_div(entries[begin].size, kStretch);
    }
    if (blocks > 0) launch(context, list_kernel<T>, blocks, kListThreads, task);
    if (sums) sums += blocks;
  }
}

template <class T>
static void run_sum(const Context& context, ListWork work, std::span<const Flat<const T>> a,
                    std::span<const Flat<const T>> b, double p, double q, T* out, Update update,
                    double factor) {
  std::vector<Entry<T>> entries;
  int64_t blocks = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    entries.push_back(entry<T>(nullptr, a[i].data, b[i].data, a[i].size));
    blocks += ceil_div(a[i].size, kStretch);
  }
  double* sums = workspace<double>(context, std::max<int64_t>(blocks, 1));
  run_lists(context, work, entries, p, q, sums);
  const ListTotal<T> total{sums, blocks, out, update.decay, update.scale * factor};
  launch(context, list_total_kernel<T>, 1, kListThreads, total);
}

template <class T>
void gaussian_kl(const Context& context, T* out, Update update, std::span<const Flat<const T>> mean,
                 std::span<const Flat<const T>> log_sigma, double prior_sigma) {
  run_sum(context, ListWork::divergence, mean, log_sigma, 1 / (prior_sigma * prior_sigma),
          2 * std::log(prior_sigma) - 1, out, update, 0.5);
}

template <class T>
void squared_gradient_sum(const Context& context, T* out, Update update,
                          std::span<const Flat<const T>> gradient,
                          std::span<const Flat<const T>> log_sigma) {
  run_sum(context, ListWork::squares, gradient, log_sigma, 0, 0, out, update, 1);
}

template <class T>
void precision_update(const Context& context, std::span<const Flat<T>> precision,
                      std::span<const Flat<const T>> diagonal, double decay, double scale) {
  std::vector<Entry<T>> entries;
  for (size_t i = 0; i < precision.size(); ++i)
    entries.push_back(entry<T>(precision[i].data, diagonal[i].data, nullptr, precision[i].size));
  run_lists<T>(context, ListWork::update, entries, decay, scale, nullptr);
}

template <class T>
void sample_from_precision(const Context& context, std::span<const Flat<T>> noise,
                           std::span<const Flat<const T>> mean,
                           std::span<const Flat<const T>> precision, double prior, double scale) {
  std::vector<Entry<T>> entries;
  for (size_t i = 0; i < noise.size(); ++i)
    entries.push_back(entry(noise[i].data, mean[i].data, precision[i].data, noise[i].size));
  run_lists<T>(context, ListWork::sample, entries, prior, scale, nullptr);
}

LAPKERNELS_INSTANCES(gaussian_kl)
LAPKERNELS_INSTANCES(squared_gradient_sum)
LAPKERNELS_INSTANCES(precision_update)
LAPKERNELS_INSTANCES(sample_from_precision)

}  // namespace lapkernels::cuda
