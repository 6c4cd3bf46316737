// Half precision for CUDA kernels on the CPU: see cuda.h.
#pragma once

using half = _Float16;
using __half = half;
struct __align__(4) half2 { half x, y; };
using __half2 = half2;

inline half2 make_half2(half x, half y) { return {x, y}; }
inline half __float2half(float x) { return static_cast<half>(x); }
inline half __float2half_rn(float x) { return static_cast<half>(x); }
inline float __half2float(half x) { return static_cast<float>(x); }
inline bool __hgt(half a, half b) { return a > b; }
inline bool __hlt(half a, half b) { return a < b; }
inline half hexp(half x) { return __float2half(expf(x)); }
inline half hsqrt(half x) { return __float2half(sqrtf(x)); }
inline half hrsqrt(half x) { return __float2half(rsqrtf(x)); }
