/**
 * Color maps of matplotlib in 256 steps: cividis for weights from 0, PuOr for signed numbers. Readers with any kind of color
 * blindness can distinguish their colors.
 */

const CIVIDIS =
  "00224d00234f00235000245200255400265500265700275900285b00285c00295e002a60002a62002b64002c66002c67002d69002e6b002f6d002f6f" +
  "0030700030700031700031700432700833700b33700e347011356f14366f16366f18376f1a386f1c386e1d396e1f3a6e213b6e223b6e243c6e253d6d" +
  "273d6d283e6d2a3f6d2b3f6d2c406d2e416c2f426c30426c31436c32446c34446c35456c36466c37466c38476c39486c3a486b3b496b3d4a6b3e4b6b" +
  "3f4b6b404c6b414d6b424d6b434e6b444f6b454f6b46506b47516b48516b49526b4a536b4b546c4c546c4d556c4e566c4e566c4f576c50586c51586c" +
  "52596c535a6c545a6c555b6d565c6d575d6d585d6d595e6d595f6d5a5f6d5b606e5c616e5d616e5e626e5f636e60646e61646f61656f62666f63666f" +
  "64676f656870666970676970686a70686b71696b716a6c716b6d716c6d726d6e726e6f726e70736f7073707173717273727374737374747475747575" +
  "7575757676767777767878767978777979777a7a777b7b777c7b787d7c787e7d787f7d78807e78817f78828078838078848178858278858378868378" +
  "8784788885788986788a86788b87788c88788d89788e89788f8a77908b77918c77928c77938d77948e77958f77968f779790769891769992769a9376" +
  "9b93769c94769d95759e96759f9675a09775a19874a29974a39a74a49a74a59b73a69c73a79d73a89e73a99e72aa9f72aba072aca171ada271aea271" +
  "afa370b0a470b1a570b2a66fb3a66fb4a76fb5a86eb6a96eb7aa6db8ab6db9ab6dbaac6cbbad6cbcae6bbdaf6bbeb06abfb06ac1b169c2b269c3b368" +
  "c4b468c5b567c6b567c7b666c8b765c9b865cab964cbba64ccbb63cdbc62cebc62cfbd61d0be60d2bf60d3c05fd4c15ed5c25ed6c35dd7c35cd8c45b" +
  "d9c55adac65adbc759dcc858dec957dfca56e0cb55e1cc54e2cc53e3cd52e4ce51e5cf50e6d04fe8d14ee9d24dead34cebd44becd54aedd648eed747" +
  "efd846f1d944f2da43f3da42f4db40f5dc3ff6dd3df8de3bf9df3afae038fbe136fde234fde333fde534fde636fde737";

const PUOR =
  "2d004b2e014d30034f310452330654340756360959370a5b390c5e3a0d603c0f623d10653f126740136a42156c43166e451871471a73481b764a1d78" +
  "4b1e7a4d207d4e217f502382512484532686542888562b8a582e8b5a318c5b348e5d378f5f3a91603d92624094644395664696674998694c996b4f9b" +
  "6d529c6e559d70589f725ba0735ea27561a37764a47967a67a6aa77c6da97e70aa8073ac8175ad8377ae8579b0877bb1897db38b80b48d82b68f84b7" +
  "9186b99388ba958bbc978dbd998fbf9b91c09d93c29f96c3a198c5a39ac6a59cc8a79ec9a9a1cbaba3ccada5ceafa7cfb1a9d1b2abd2b4add3b5afd4" +
  "b7b1d5b8b3d6bab5d7bbb6d8bdb8d9bebadac0bcdbc1bedcc3c0ddc4c2dec6c3dfc7c5e0c9c7e1cac9e2cccbe3cdcde4cfcee5d0d0e6d2d2e7d3d4e8" +
  "d5d6e9d6d8ead8daebd9dbebdadcebdbddecdcdeecdedfeddfe0ede0e1eee1e3eee2e4efe4e5efe5e6f0e6e7f0e7e8f1e9e9f1eaebf2ebecf2ecedf3" +
  "edeef3efeff3f0f0f4f1f1f4f2f3f5f3f4f5f5f5f6f6f6f6f7f6f5f7f5f3f7f4f0f7f3eef8f2ebf8f2e8f8f1e6f9f0e3f9efe1f9eedef9eddcfaecd9" +
  "faebd7faead4fae9d2fbe9cffbe8ccfbe7cafce6c7fce5c5fce4c2fce3c0fde2bdfde1bbfde0b8fee0b6fddeb2fddcaffddbacfdd9a8fdd8a5fdd6a2" +
  "fdd59ffdd39bfdd198fdd095fdce92fdcd8efdcb8bfdca88fdc885fdc681fdc57efdc37bfdc278fdc074fdbf71fdbd6efdbb6bfdba67fdb864fcb661" +
  "fbb45efab25bf9b058f7ae55f6ac51f5aa4ef4a84bf3a648f2a345f1a142ef9f3fee9d3ced9b39ec9936eb9732ea952fe9922ce79029e68e26e58c23" +
  "e48a20e3881de2861ae18417e08214de8013dc7e12da7d12d87b11d77911d57810d37610d1740fd0730fce710ecc6f0dca6e0dc96c0cc76a0cc5690b" +
  "c3670bc2660ac0640abe6209bc6109ba5f08b95d07b75c07b55a06b35806b15706af5606ad5506ab5406a95206a75106a55006a34f06a14e069f4d06" +
  "9d4c069b4a069949069748079547079346079145078f44078d42078b4107894007873f07853e07833d07813c077f3b08";

/** Return the 256 colors of a table as [red, green, blue] from 0 to 255. */
function decode(table) {
  return Array.from({ length: 256 }, (_, i) => [0, 2, 4].map((at) => parseInt(table.slice(6 * i + at, 6 * i + at + 2), 16)));
}

/** Return the colors as pixels of an image, in the byte order of this machine. */
function pack(table) {
  return Uint32Array.from(table, (rgb) => new Uint32Array(Uint8Array.of(...rgb, 255).buffer)[0]);
}

const TABLES = { weights: decode(CIVIDIS), signed: decode(PUOR) };
const PACKED = { weights: pack(TABLES.weights), signed: pack(TABLES.signed) };

/** Return the entry of the table for a value: round(255 (v - lo) / (hi - lo)). */
export function entry(value, lo, hi) {
  if (hi <= lo) return 0;
  return Math.max(0, Math.min(255, Math.round((255 * (value - lo)) / (hi - lo))));
}

/** Return [red, green, blue] of a value; null where it is not finite. `scale` is {table: "weights"|"signed", lo, hi}. */
export function color(value, scale) {
  return Number.isFinite(value) ? TABLES[scale.table][entry(value, scale.lo, scale.hi)] : null;
}

/** Return a color as CSS text. */
export function cssColor(value, scale) {
  const found = color(value, scale);
  return found ? `rgb(${found.join(" ")})` : "transparent";
}

const GRADIENTS = Object.fromEntries(
  Object.entries(TABLES).map(([name, table]) => {
    const stops = Array.from({ length: 17 }, (_, i) => `rgb(${table[Math.round((255 * i) / 16)].join(" ")})`);
    return [name, `linear-gradient(to right, ${stops.join(", ")})`];
  }),
);

/** Return the colors of a scale from its low to its high end, as CSS. */
export const gradient = (scale) => GRADIENTS[scale.table];

/** Return a color as a pixel of an image; 0, transparent, where the value is not finite. */
export function packed(value, scale) {
  return Number.isFinite(value) ? PACKED[scale.table][entry(value, scale.lo, scale.hi)] : 0;
}

/** Return the scale of some numbers: from 0 to the largest for weights, symmetric about 0 for numbers with a sign. */
export function scaleOf(values, isWeights) {
  let top = 0;
  for (const value of values) if (Number.isFinite(value) && Math.abs(value) > top) top = Math.abs(value);
  return isWeights ? { table: "weights", lo: 0, hi: top || 1 } : { table: "signed", lo: -(top || 1), hi: top || 1 };
}
