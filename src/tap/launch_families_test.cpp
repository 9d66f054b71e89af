// What a kernel does, told from names as profilers of real runs list them (cuBLAS, CUTLASS, Inductor, vLLM,
// FlashInfer).
#include "tap/launch_families.h"

#include <gtest/gtest.h>

namespace faultline::tap {
namespace launch_families_test {

using enum LaunchFamily;

void expect(LaunchFamily family, std::initializer_list<const char*> names, bool part = false) {
  for (const char* name : names) {
    const LaunchKind kind = classify_kernel(demangled_kernel(name));
    EXPECT_EQ(name_of(kind.family), name_of(family)) << name;
    EXPECT_EQ(kind.part, part) << name;
  }
}

TEST(LaunchFamilies, KnowProducts) {
  expect(
      kProduct,
      {"nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT",
       "nvjet_sm90_tst_128x64_64x8_1x2_h_bz_splitK_TNT",
       "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
       "nvjet_sm90_tss_64x8_64x16_4x1_v_bz_splitK_TNT",
       "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_"
       "cublas",
       "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
       "ampere_sgemm_128x64_tn",
       "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(cutlass_80_"
       "tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8::Params)",
       "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
       "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<7>>>>",
       "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, "
       "cublasGemvParamsEx<int>>(cublasGemvParamsEx<int>)",
       "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, "
       "__nv_bfloat16, float, false, true, true, false, 7, false, cublasGemvParamsEx<int>>(cublasGemvParamsEx<int>)",
       "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const>>",
       "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>>>",
       "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 8192u, 1u, 256u>",
       "void marlin::Marlin<nv_bfloat16, 256, 1, 8, 8, 4, true>",
       "fused_moe_kernel",
       "_w8a8_block_fp8_matmul",
       "matmul_kernel",
       "_matmul_partitioned",
       "bmm_Bfloat16_Bfloat16Bfloat16_Fp32",
       "cublasLtMatmulKernel",
       "router_gemm_kernel_float_output",
       "cudnn_generated_fort_native_matMul_sm90"});
}

TEST(LaunchFamilies, KnowThePartsOfAProduct) {
  expect(kProduct,
         {"void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, false, float, "
          "__nv_bfloat16, __nv_bfloat16, true, false, false, false>(cublasLt::cublasSplitKParams<float>)",
          "void splitKreduce_kernel<float, float, float, float, true, false>",
          "void cutlass::reduction::kernel::ReduceSplitK<cutlass::MatrixShape<4, 128>>",
          "void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float>>"},
         true);
}

TEST(LaunchFamilies, KnowWhatInductorGenerates) {
  expect(kProduct, {"triton_mm_31", "triton_mm", "triton_bmm_4", "triton_tem_fused_mm_1", "triton_tem_fused_bmm_7",
                    "triton_tem_fused__to_copy_addmm_gelu_t_view_9", "triton_tem_fused_0", "triton_red_fused_mm_3",
                    "triton_per_fused_addmm_2"});
  expect(kAttention, {"triton_tem_fused_flex_attention_0", "triton_flex_attention_2"});
  expect(kNorm, {"triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "triton_red_fused__to_copy_native_layer_norm_1",
                 "triton_red_fused_add_addmm_native_layer_norm_5"});  // the bias of an addmm that ran before it
  expect(kActivation,
         {"triton_poi_fused_mul_silu_slice_1", "triton_poi_fused_addmm_gelu_3",
          "triton_red_fused__to_copy_abs_clamp_div_max_mul_preshuffle_gemm_silu_slice_squeeze_view_6",
          "triton_per_fused__to_copy_abs_clamp_cutlass_scaled_mm_div_max_mul_reciprocal_silu_slice_unsqueeze_2"});
  expect(kOther, {"triton_per_fused__to_copy_abs_clamp_cutlass_scaled_mm_div_max_mul_reciprocal_unsqueeze_view_0",
                  "triton_poi_fused_add_mul_0", "triton_poi_fused_add_mm_2", "triton_poi_fused_cat_index_mul_1",
                  "triton_tem_fused__to_copy_convolution_repeat_unsqueeze_view_2", "triton_per_fused__softmax_4"});
}

TEST(LaunchFamilies, KnowAttention) {
  expect(kAttention,
         {"void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
          "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1>>>>>>",
          "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, "
          "cutlass::bfloat16_t>, false, false>(flash::Flash_fwd_params)",
          "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "kernel_unified_attention_2d",
          "kernel_paged_attention_2d", "void vllm::paged_attention_v1_kernel<unsigned short, unsigned short, 128>",
          "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, "
          "cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)",
          "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0",
          "void flashinfer::BatchPrefillWithPagedKVCacheKernel<(flashinfer::MaskMode)1>", "_fwd_grouped_kernel_stage1",
          "_attn_fwd", "fmhaSm90aKernel_QkvBfloat16OBfloat16H128", "_fwd_kernel"});
  expect(kAttention,
         {"void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>, 4, 1, true>",
          "void cutlass::device_kernel<flash::enable_sm80_to_sm89<flash::FlashAttnFwdCombine<cute::tuple<>>>>",
          "flash::prepare_varlen_num_blocks_kernel(int, int, int, int const*)", "reduce_segments",
          "void vllm::merge_attn_states_kernel<c10::BFloat16, 128>", "_fwd_kernel_stage2"},
         true);
}

TEST(LaunchFamilies, KnowTheRest) {
  expect(kNorm,
         {"void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>", "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>",
          "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>",
          "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__tensor",
          "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float)",
          "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<>", "gemma_fused_add_rmsnorm",
          "void flashinfer::norm::GemmaRMSNormKernel<8>", "fused_qk_gemma_norm_mrope_rms_norm"});
  expect(kActivation,
         {"void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>",
          "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
          "at::native::GeluType)::{lambda()#2}, std::array<char*, 2ul>>"});
  expect(kCopy,
         {"void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>",
          "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
          "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous "
          "namespace)::OpaqueType<2u>, unsigned int, 2, 64, 64>",
          "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>"});
  expect(kOther,
         {"void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32",
          "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>", "main_kernel",
          "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
          "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>"});
}

TEST(LaunchFamilies, KnowOurOwn) {
  expect(kFault,
         {"void faultline::numeric::cuda::relative_gaussian_kernel<true, faultline::numeric::Bf16, "
          "4>(faultline::numeric::Argument)",
          "void faultline::numeric::cuda::fault_kernel<(faultline::numeric::FaultKind)3, "
          "faultline::numeric::Bf16>(faultline::numeric::FaultArguments)",
          "void faultline::numeric::cuda::(anonymous namespace)::quantize_kernel<faultline::numeric::Bf16, true>()",
          "void faultline::numeric::cuda::block_format_kernel<true>()",
          "void faultline::model::ops::cuda::(anonymous namespace)::norm_with_fault_kernel<float>()",
          // mangled, as CUPTI gives it
          "_ZN9faultline7numeric4cuda12fault_kernelILNS0_9FaultKindE3ENS0_7Float32EEEvNS0_14FaultArgumentsENS0_"
          "9TraversalE",
          "_ZN9faultline7numeric4cuda44_GLOBAL__N__01fded9c_11_quantize_cu_943b5b1315quantize_kernelILNS0_"
          "10FormatKindE6ENS0_7Float32EEEvNS0_17QuantizeArgumentsE"});
  expect(kFault,
         {"void faultline::numeric::cuda::(anonymous namespace)::tensor_kernel<faultline::numeric::Bf16>()",
          "void faultline::numeric::cuda::(anonymous namespace)::row_kernel<faultline::numeric::Bf16>()",
          "faultline::numeric::cuda::(anonymous namespace)::tensor_amax_kernel(uint4 const*, long, UnitRange*)"},
         true);
  expect(
      kFault,
      {"_ZN9faultline7numeric4cuda46_GLOBAL__N__e0c624d6_13_statistics_cu_200bd54b13tensor_kernelINS0_7Float16EEEvNS0_"
       "18ReferenceArgumentsENS0_9TraversalEPKNT_4BitsEPdPf"},
      true);
  expect(kProduct,
         {"_ZN9faultline5model3ops4cuda41_GLOBAL__N__767400c4_9_linear_cu_49f8287e11tile_kernelI6__halfLb0EEEvNS2_"
          "15LinearArgumentsE"});
  expect(kAttention, {"void faultline::model::ops::cuda::attend_kernel<float, 2>()"});
  expect(kNorm, {"void faultline::model::ops::cuda::(anonymous namespace)::norm_kernel<float>()"});
  expect(kActivation, {"void faultline::model::ops::cuda::(anonymous namespace)::forward_kernel<float>()"});
  expect(kOther, {"faultline::numeric::cuda::(anonymous namespace)::digest_kernel(unsigned char const*)",
                  "void faultline::model::ops::cuda::(anonymous namespace)::draw_kernel<float>()"});
  // Only its own namespace makes a kernel ours.
  expect(kOther, {"void engine::apply<faultline::FaultArguments>()", "void engine::fault_kernel<float>()"});
}

TEST(LaunchFamilies, ShortNamesLeaveOutWhatNobodyReads) {
  EXPECT_EQ(short_kernel_name("void vllm::rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, float (*)(int))"),
            "vllm::rms_norm_kernel<c10::BFloat16, 8>");
  EXPECT_EQ(short_kernel_name("void at::native::(anonymous namespace)::f<int>(int)"), "at::native::f<int>");
  EXPECT_EQ(short_kernel_name("nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT"), "nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT");
  EXPECT_EQ(short_kernel_name("void k<" + std::string(500, 'x') + ">(int)").size(), 100u);
  EXPECT_EQ(short_kernel_name(""), "");
  EXPECT_EQ(short_kernel_name(")"), ")");
}

}  // namespace launch_families_test
}  // namespace faultline::tap
