import * as cheerio from 'cheerio';
export default () => {
  const $ = cheerio.load('<ul id="fruits"><li class="a">Apple</li><li>Pear</li></ul>');
  $('li.a').text('Apricot').addClass('b');
  return [$('#fruits li').map((_, each) => $(each).text()).get(), $('ul').html(), $('li:nth-child(2)').text(), $.html()];
};
