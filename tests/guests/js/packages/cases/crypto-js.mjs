import CryptoJS from 'crypto-js';
export default () => {
  const sealed = CryptoJS.AES.encrypt('message', CryptoJS.enc.Utf8.parse('0123456789abcdef'), { iv: CryptoJS.enc.Utf8.parse('fedcba9876543210') }).toString();
  return [sealed, CryptoJS.SHA256('x').toString(), CryptoJS.HmacSHA1('a', 'k').toString(CryptoJS.enc.Base64), CryptoJS.MD5('caf\u00e9').toString(), CryptoJS.lib.WordArray.random(8).sigBytes];
};
